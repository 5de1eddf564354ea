"""The ``isthmus`` command: runs the program that comes with the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    """Becomes bin/isthmus with the same arguments; returns only when there is none."""
    program = Path(__file__).resolve().parent / "bin" / "isthmus"
    if not program.exists():
        print(
            f"isthmus: {program} is missing: this package was built without its programs. "
            "Reinstall it with: pip install --force-reinstall --no-deps .",
            file=sys.stderr,
        )
        return 1
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
