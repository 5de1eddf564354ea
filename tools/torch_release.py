#!/usr/bin/env python3
"""Prints the folder of an unpacked release of torch, which it fetches if it is not there.

It takes the CPU build from PyTorch's own index or, where that cannot be reached, what pip finds.
That is a CUDA build with the same headers; cuda_stand_ins.py makes it run without the gigabytes of
CUDA libraries that it asks for.

Usage: tools/torch_release.py VERSION      as in 2.12.1; run it with the Python that torch is for
TORCH_CACHE names the folder of all releases (default: isthmus/torch in the user's cache folder).
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import cuda_stand_ins

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Programs and data that test torch itself stay packed.
LEFT_OUT = re.compile(r"torch/(bin/(test_|protoc)|test/)|.*\.a$")


def cache():
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    return pathlib.Path(os.environ.get("TORCH_CACHE", default / "isthmus" / "torch"))


def download(version, folder):
    """The wheel of a release, fetched into the folder."""
    log = ""
    for source in (("--retries", "0", "--index-url", CPU_INDEX), ()):
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download",
             "-q", "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "-d", str(folder),
             *source, f"torch=={version}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False)
        if done.returncode == 0:
            return next(folder.glob("torch-*.whl"))
        log = done.stdout
    raise SystemExit(f"{log}torch_release: pip has no torch {version} for Python "
                     f"{sys.version_info[0]}.{sys.version_info[1]}: name a version that it has")


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if not LEFT_OUT.match(name)])


def folder_of(version):
    """The folder that holds torch/ of this version: it can be put on the path of Python."""
    tag = "cp%d%d" % sys.version_info[:2]
    place = cache() / f"{version}-{tag}"
    if not place.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache(), prefix="unfinished-") as name:
            work = pathlib.Path(name)
            unpack(download(version, work), work / "root")
            cuda_stand_ins.make(work / "root" / "torch" / "lib")
            try:
                (work / "root").rename(place)
            except OSError:
                if not place.is_dir():  # else another process was faster
                    raise
    return place


def main():
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        raise SystemExit(__doc__)
    print(folder_of(sys.argv[1]))


if __name__ == "__main__":
    main()
