"""What readelf and nm (binutils, which every compiler brings) say about a shared library."""

import pathlib
import re
import subprocess


def _output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(path):
    """Names of the libraries that it asks for."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _output("readelf", "-dW", path))


def run_path(path):
    """Folders where it looks for them first."""
    found = re.search(r"\(R(?:UN)?PATH\).*\[(.+)\]", _output("readelf", "-dW", path))
    return found[1].split(":") if found else []


def symbols(path, which):
    """(type, name, version) of its dynamic symbols; `which` is an option of nm."""
    for line in _output("nm", "-D", "--format=posix", which, path).splitlines():
        name, kind = line.split()[:2]
        name, _, version = name.partition("@")
        yield kind, name, version.lstrip("@")


def defined(path):
    return {name for _, name, _ in symbols(path, "--defined-only")}


def undefined(path):
    """{name: version} of what others must define; weak symbols may stay without."""
    return {name: version for kind, name, version in symbols(path, "--undefined-only")
            if kind == "U"}


def version_needs(path):
    """{version: library} of the versions that its symbols ask for."""
    found = {}
    library = ""
    section = _output("readelf", "-VW", path).partition("Version needs section")[2]
    for kind, value in re.findall(r"(File|Name): (\S+)", section):
        if kind == "File":
            library = value
        else:
            found[value] = library
    return found


def libraries(folder):
    return sorted(pathlib.Path(folder).glob("*.so*"))
