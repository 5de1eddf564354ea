#!/usr/bin/env python3
"""Makes stand-ins for the CUDA libraries that a build of torch asks for and does not find.

The loader wants them all before anything runs, gigabytes of them, and on CPU tensors nothing of
them is ever used. A stand-in has the functions that torch's libraries name, and each of them
returns the error "no device". Nothing is made for a CPU build, or where the libraries are.

Usage: tools/cuda_stand_ins.py FOLDER      torch's folder of libraries
"""

import collections
import pathlib
import subprocess
import sys
import tempfile

import elf

NO_DEVICE = 100  # cudaErrorNoDevice


def on_this_machine():
    """{name: path} of the libraries that the loader finds by itself."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    lines = [line.split() for line in listed.stdout.splitlines() if "=>" in line]
    return {words[0]: words[-1] for words in reversed(lines)}


def compile_stand_in(library, versions, folder):
    """versions: {version, or "" for none: names}."""
    lines = [f"static int stand_in(void) {{ return {NO_DEVICE}; }}"]
    script = []
    for version, names in versions.items():
        lines += [f'int {name}(void) __attribute__((alias("stand_in")));' for name in sorted(names)]
        if version:
            script.append(version + " { global: " + " ".join(f"{n};" for n in sorted(names)) + "};")
    with tempfile.TemporaryDirectory() as work:
        source = pathlib.Path(work, "stand_in.c")
        source.write_text("\n".join(lines) + "\n")
        command = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o",
                   str(folder / library), str(source)]
        if script:
            map_file = pathlib.Path(work, "stand_in.map")
            map_file.write_text("\n".join(script) + "\n")
            command.append(f"-Wl,--version-script={map_file}")
        subprocess.run(command, check=True)


def make(folder):
    """Names of the stand-ins made in the folder."""
    present = elf.libraries(folder)
    wanted = {name for path in present for name in elf.needed(path)}
    system = on_this_machine()
    missing = wanted - {path.name for path in present} - set(system)
    if not missing:
        return []
    stand_ins = {name: collections.defaultdict(set) for name in sorted(missing)}
    found = [*present, *(system[name] for name in wanted & set(system)), sys.executable]
    defined = set().union(*map(elf.defined, found))
    plain = {}
    for path in present:
        library_of = elf.version_needs(path)
        plain[path] = set()
        for name, version in elf.undefined(path).items():
            if library_of.get(version) in stand_ins:
                stand_ins[library_of[version]][version].add(name)
            elif not version and name not in defined:
                plain[path].add(name)
    # Where libraries have no versions, a name may come from any: the first such one gets all.
    unversioned = {name for name, versions in stand_ins.items() if not versions}
    for path, names in plain.items():
        for library in [name for name in elf.needed(path) if name in unversioned][:1]:
            stand_ins[library][""] |= names
    for library, versions in stand_ins.items():
        compile_stand_in(library, versions, folder)
    return sorted(stand_ins)


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print("\n".join(make(pathlib.Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
