#!/usr/bin/env python3
"""Runs clang-tidy over the C++ sources of a build folder's compile_commands.json.

With --files changed it passes over a source that was clean before and has not changed since, in
itself, its headers, its flags or .clang-tidy: the key is a hash of the preprocessed text, kept in
BUILD/clang-tidy. With --files all it reads every source. --no-analyzer leaves out clang-analyzer-*,
which takes half of the time, and so proves nothing to a later --files changed.

Usage: tools/run_clang_tidy.py --build build/dev [--files changed|all] [--no-analyzer] [--jobs N]
                               [PATH...]
PATH... limits it to sources whose path below the root starts so.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import shlex
import subprocess
import sys

import repo_files

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Seconds: the slowest source takes a tenth of it; a hang must not stop the gate.
SOURCE_TIMEOUT_S = 300


def sources(build, prefixes):
    """Maps each source of the repository that the build compiles to its compile command."""
    ours = set(repo_files.files(ROOT, ".cc"))
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        name = path.relative_to(ROOT).as_posix() if path in ours else ""
        if name and (not prefixes or name.startswith(tuple(prefixes))):
            found[path] = entry
    return found


def key(entry, config):
    """Hash over all that decides the findings, or an empty string if it does not preprocess."""
    words = [word for word in shlex.split(entry["command"]) if not word.endswith("ccache")]
    flags = [word for word in words if word not in ("-c", "-o") and not word.endswith(".o")]
    done = subprocess.run(flags + ["-E"], cwd=entry["directory"], capture_output=True, check=False,
                          timeout=SOURCE_TIMEOUT_S)
    if done.returncode != 0:
        return ""
    return hashlib.sha256(config + " ".join(flags).encode() + done.stdout).hexdigest()


def run_one(path, entry, options, config):
    """(path, finding text, seen before): text is empty when the source is clean."""
    stamp = options.build / "clang-tidy" / path.relative_to(ROOT).as_posix().replace("/", "+")
    wanted = key(entry, config)
    if options.files == "changed" and wanted and stamp.exists() and stamp.read_text() == wanted:
        return path, "", True
    command = [options.clang_tidy, "--quiet", "-p", str(options.build), str(path)]
    if not options.analyzer:
        # Without it clang finds what libstdc++ deprecates of its own inside std::stable_sort; of
        # ours the compiler tells.
        command[1:1] = ["--checks=-clang-analyzer-*", "--extra-arg=-Wno-deprecated-declarations"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              timeout=SOURCE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return path, f"{path}: clang-tidy took more than {SOURCE_TIMEOUT_S} s\n", False
    if done.returncode == 0:
        if options.analyzer:
            stamp.write_text(wanted)
        return path, "", False
    return path, done.stdout or done.stderr, False


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "dev")
    parser.add_argument("--files", choices=("changed", "all"), default="changed")
    parser.add_argument("--no-analyzer", dest="analyzer", action="store_false")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--clang-tidy", default=str(pathlib.Path(sys.executable).parent /
                                                    "clang-tidy"))
    parser.add_argument("paths", nargs="*")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    found = sources(options.build, options.paths)
    (options.build / "clang-tidy").mkdir(exist_ok=True)
    version = subprocess.run([options.clang_tidy, "--version"], capture_output=True, check=True)
    config = version.stdout
    for path in repo_files.files(ROOT, ".clang-tidy"):
        config += path.read_bytes()
    bad = seen = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run_one, path, entry, options, config)
                for path, entry in sorted(found.items())]
        for run in concurrent.futures.as_completed(runs):
            _, text, before = run.result()
            seen += before
            if text:
                bad += 1
                print(text, flush=True)
    print(f"clang-tidy: {len(found)} sources, {bad} with findings, {seen} unchanged since clean")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
