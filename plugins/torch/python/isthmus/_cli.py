"""The commands of the package: ``isthmus``, and the perf programs under their own names."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    """Becomes the program in bin/ of the name it was called by; returns only when there is none."""
    name = Path(sys.argv[0]).name
    folder = Path(__file__).resolve().parent / "bin"
    program = folder / (name if name.endswith("_perf") else "isthmus")
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
