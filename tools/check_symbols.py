#!/usr/bin/env python3
"""Checks the extension modules of the package: what they show, and what they ask for.

A module shows the function that Python calls, and nothing else. What it asks for is in the
libraries that it names: torch's (of these the CPU ones only: it serves every build of a version),
the package's own, the C and C++ libraries, and Python itself. In a wheel also: the folders where it
looks for libraries lie in the wheel, and the C library may be as old as the wheel's name says.

Usage: tools/check_symbols.py SHIM|WHEEL TORCH...     TORCH: a folder that holds torch/, one for
                                                      each version that a shim is there for
"""

import pathlib
import re
import sys
import sysconfig
import tempfile
import zipfile

import elf

TORCH_LIBRARIES = ("libtorch_python.so", "libtorch.so", "libtorch_cpu.so", "libc10.so")
SYSTEM_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6",
                    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
TAG = re.compile(r"manylinux_(\d+)_(\d+)")


def python_symbols():
    """What the interpreter defines; extension modules name no library for it."""
    names = elf.defined(pathlib.Path(sys.executable).resolve())
    shared = pathlib.Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY"))
    return names | (elf.defined(shared) if shared.suffix != ".a" and shared.exists() else set())


def own_libraries(path):
    """{name: path} of the libraries in the folders that the file names, relative to itself."""
    folders = [pathlib.Path(folder.replace("$ORIGIN", str(path.parent)))
               for folder in elf.run_path(path)]
    return {library.name: library for folder in folders for library in elf.libraries(folder)}


def system_library(name):
    for folder in sysconfig.get_config_var("MULTIARCH"), "":
        for root in "/lib", "/usr/lib", "/lib64", "/usr/lib64":
            path = pathlib.Path(root, folder or "", name)
            if path.exists():
                return path
    return None


def provided(path, torch):
    """Yields (library, names that it defines) for what the file names; None for a lost library."""
    own = own_libraries(path)
    for name in elf.needed(path):
        place = torch / "torch" / "lib" / name if name in TORCH_LIBRARIES else own.get(name)
        place = place or system_library(name)
        yield name, elf.defined(place) if place and place.exists() else None


def check_shim(path, torch):
    """What is wrong with a module, one text a finding."""
    shown = elf.defined(path)
    if shown != {f"PyInit_{path.stem}"}:
        extra = ", ".join(sorted(shown)[:5])
        yield f"{path.name} shows {len(shown)} symbols, expected PyInit_{path.stem} alone: {extra}"
    left = set(elf.undefined(path)) - python_symbols()
    for library, names in provided(path, torch):
        if names is None:
            yield f"{path.name} asks for {library}, which is nowhere"
        else:
            left -= names
    for name in sorted(left):
        yield f"{path.name} asks for {name}, which none of its libraries defines"


def check_wheel_file(path, root, tag, allowed):
    """A program or library of a wheel that is unpacked at root, and may name the allowed ones."""
    for library in elf.needed(path):
        if library not in allowed:
            yield f"{path.name} asks for {library}, which the wheel does not bring"
    for folder in elf.run_path(path):
        inside = pathlib.Path(folder.replace("$ORIGIN", str(path.parent))).resolve()
        if not folder.startswith("$ORIGIN") or not inside.is_relative_to(root.resolve()):
            yield f"{path.name} looks for libraries in {folder}, which is outside the wheel"
    for version in elf.version_needs(path):
        number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
        if number and (int(number[1]), int(number[2])) > tag:
            yield f"{path.name} asks for {version}, newer than manylinux_{tag[0]}_{tag[1]}"


def check_wheel(wheel, torches):
    named = TAG.search(wheel.name)
    if named is None:
        yield f"{wheel.name} has no manylinux tag: auditwheel has not repaired it"
        return
    tag = (int(named[1]), int(named[2]))
    with tempfile.TemporaryDirectory() as work, zipfile.ZipFile(wheel) as packed:
        root = pathlib.Path(work)
        packed.extractall(root)
        files = [path for path in root.rglob("*") if path.is_file() and is_elf(path)]
        allowed = {*TORCH_LIBRARIES, *SYSTEM_LIBRARIES, *(path.name for path in files)}
        for path in files:
            yield from check_wheel_file(path, root, tag, allowed)
        yield from check_shims(root / "isthmus" / "_torch", torches)


def is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def minor_of(torch):
    """2_13 of a folder that holds torch/."""
    text = (torch / "torch" / "version.py").read_text()
    return "_".join(re.search(r"__version__ = '(\d+)\.(\d+)", text).groups())


def check_shims(folder, torches):
    """The modules of a folder; each must have its torch in the list."""
    torch_of = {f"_C_{minor_of(torch)}": torch for torch in torches}
    shims = sorted(folder.glob("_C_*.so"))
    if not shims:
        yield f"{folder} has no shim"
    for shim in shims:
        if shim.stem in torch_of:
            yield from check_shim(shim, torch_of[shim.stem])
        else:
            yield f"{shim.name} cannot be checked: no torch of its version was named"


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    path, *torches = map(pathlib.Path, sys.argv[1:])
    if path.suffix == ".whl":
        findings = list(check_wheel(path, torches))
    else:
        findings = list(check_shim(path, torches[0]))
    print("".join(f"{finding}\n" for finding in findings), end="")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
