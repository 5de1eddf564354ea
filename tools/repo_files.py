"""Lists the files that belong to the repository: shared by the checks beside it."""

import pathlib
import subprocess

SKIPPED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__", "run-output", "third_party"}


def files(root, *suffixes):
    """Sorted paths below root with one of the suffixes (all files if none is given).

    Asks git for tracked and new files, so that ignored output is left out; a tree without git,
    such as an unpacked source archive or a test's own, is walked.
    """
    root = pathlib.Path(root)
    names = []
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others",
                   "--exclude-standard"]
        answer = subprocess.run(command, capture_output=True, check=False)
        if answer.returncode == 0:
            names = [root / name for name in answer.stdout.decode().split("\0") if name]
    if not names:
        names = [path for path in root.rglob("*") if path.is_file()]
    kept = []
    for path in set(names):
        folders = path.relative_to(root).parts[:-1]
        if SKIPPED_FOLDERS.isdisjoint(folders) and path.is_file():
            if not suffixes or path.name.endswith(suffixes):
                kept.append(path)
    return sorted(kept)
