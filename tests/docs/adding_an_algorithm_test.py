"""Goal: docs/adding-an-algorithm.md works as it stands. Method: put its code blocks where it says,
compile them with the tests that its commands run, link the rest from this build, and run those
commands. Only what the page changes is compiled: this takes seconds, not a full build.

Usage: adding_an_algorithm_test.py SOURCE_DIR BUILD_DIR CXX [FLAG...]
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = "docs/adding-an-algorithm.md"
BLOCK = re.compile(r"^( *)```(\w+) ?([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
STEPS_MAX = 10
TIMEOUT_S = 240


def blocks(text):
    """Each fenced block as (language, where it goes, text without the page's indentation)."""
    for match in BLOCK.finditer(text):
        indent = match.group(1)
        lines = [line.removeprefix(indent) for line in match.group(4).splitlines()]
        yield match.group(2), match.group(3), "\n".join(lines) + "\n"


def place(code, where, source, tree):
    """Writes a block into the copy of the tree, as its info string says. Returns the file."""
    new = re.fullmatch(r"file=(\S+)", where)
    if new:
        assert not (source / new.group(1)).exists(), f"{new.group(1)} exists already"
        target = tree / new.group(1)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(code)
        return new.group(1)
    edit = re.fullmatch(r'in=(\S+) (above|below)="(.*)"', where)
    assert edit, f"a code block of {PAGE} does not say where it goes: {where!r}"
    name, side, anchor = edit.groups()
    target = tree / name
    text = (target if target.exists() else source / name).read_text()
    assert text.count(anchor + "\n") == 1, f"{name} has not exactly one line {anchor!r}"
    changed = code + anchor + "\n" if side == "above" else anchor + "\n" + code
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.replace(anchor + "\n", changed))
    return name


def run(command, **kwargs):
    print("+", " ".join(map(str, command)), flush=True)
    subprocess.run(command, check=True, timeout=TIMEOUT_S, **kwargs)


def compile_to(target, source, folders, compiler):
    includes = [word for folder in folders for word in ("-I", folder)]
    run([*compiler, "-std=c++20", "-O1", *includes, "-c", source, "-o", target])
    return target


def link_test(name, objects, source, build, tree, compiler):
    """Compiles one test and links it with the changed sources and this build's archives."""
    folder, stem = name.split("_", 1)
    archives = sorted(build.glob("*/libisthmus_*.a"))
    assert archives, f"{build} has no archives: build it first"
    test = compile_to(tree / f"{name}.o", source / "tests" / folder / f"{stem}.cc",
                      (tree, source, build / "generated"), compiler)
    program = tree / name
    run([*compiler, test, *objects, "-Wl,--start-group", *archives, "-Wl,--end-group",
         "-lgtest_main", "-lgtest", "-lfmt", "-lhwloc", "-lxxhash", "-lhwy", "-lpthread",
         "-o", program])
    return program


def main():
    source, build = (pathlib.Path(arg).resolve() for arg in sys.argv[1:3])
    compiler = sys.argv[3:]
    text = (source / PAGE).read_text()
    steps = re.findall(r"^(\d+)\. ", text, re.MULTILINE)
    assert steps == [str(i + 1) for i in range(len(steps))], "the steps are not numbered in order"
    assert len(steps) <= STEPS_MAX, f"{PAGE} has {len(steps)} steps, at most {STEPS_MAX}"
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        changed = []
        commands = []
        for language, where, code in blocks(text):
            if language == "cpp":
                name = place(code, where, source, tree)
                changed += [name] if name not in changed else []
            else:
                commands += code.splitlines()
        objects = [compile_to(tree / (pathlib.Path(name).stem + ".o"), tree / name,
                              (tree, source, build / "generated"), compiler)
                   for name in changed if name.endswith(".cc")]
        ran = 0
        for command in commands:
            words = command.split()
            if words[0] == "cmake":
                continue  # this build stands for the page's
            prefix = "build/dev/tests/"
            assert words[0].startswith(prefix), f"{PAGE} has a command that no test runs: {command}"
            program = link_test(words[0].removeprefix(prefix), objects, source, build, tree,
                                compiler)
            run([program, *words[1:]], env={**os.environ, "GTEST_COLOR": "no"})
            ran += 1
        assert ran >= 3, f"only {ran} commands of {PAGE} were run"


if __name__ == "__main__":
    main()
