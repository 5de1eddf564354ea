#!/usr/bin/env python3
"""Writes docs/env.md from base/env.def, or says with --check whether it is up to date.

Usage: tools/env_docs.py [--check]
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKEN = re.compile(r'\s+|//[^\n]*|"(?:[^"\\]|\\.)*"|[\w.+-]+|[(),]')
KINDS = {"ENV_INT": 5, "ENV_FLAG": 3, "ENV_TEXT": 3}
HEADER = """# Environment variables

Generated from `base/env.def` by `tools/env_docs.py`; do not edit. All variables are read once, on
first use. A value out of range and an unknown `ISTHMUS_` name are reported on stderr, with a
suggestion for a near name, and ignored. `isthmus info --env` prints the values in force.
"""


def tokens(text):
    """Words, strings and punctuation of env.def, without blanks and comments."""
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            line = text.count("\n", 0, position) + 1
            raise ValueError(f"base/env.def:{line}: cannot read {text[position:position + 20]!r}")
        position = match.end()
        word = match.group()
        if word.strip() and not word.startswith("//"):
            yield word


def read_rows(text):
    """The table as a list of (kind, arguments); adjacent strings are joined as C++ does."""
    words = list(tokens(text))
    rows = []
    index = 0
    while index < len(words):
        kind = words[index]
        if kind not in KINDS or words[index + 1:index + 2] != ["("]:
            raise ValueError(f"base/env.def: expected one of {', '.join(KINDS)}, got {kind}")
        end = words.index(")", index)
        arguments = [""]
        for word in words[index + 2:end]:
            if word == ",":
                arguments.append("")
            else:
                arguments[-1] += ast.literal_eval(word) if word.startswith('"') else word
        if len(arguments) != KINDS[kind]:
            raise ValueError(f"base/env.def: {kind}({arguments[0]}) has {len(arguments)} "
                             f"arguments, expected {KINDS[kind]}")
        rows.append((kind, arguments))
        index = end + 1
    return rows


def names(root=ROOT):
    """Every variable of env.def, with the prefix."""
    text = (pathlib.Path(root) / "base" / "env.def").read_text()
    return {"ISTHMUS_" + arguments[0] for _, arguments in read_rows(text)}


def describe(kind, arguments):
    """One row of the table in markdown."""
    fallback = arguments[1]
    if kind == "ENV_INT":
        values = f"integer, {arguments[2]} to {arguments[3]}"
    elif kind == "ENV_FLAG":
        values = "0 or 1"
        fallback = "1" if fallback == "true" else "0"
    else:
        values = "text"
    shown = f"`{fallback}`" if fallback else "empty"
    text = arguments[-1].replace("|", "\\|")
    return f"| `ISTHMUS_{arguments[0]}` | {values} | {shown} | {text} |"


def render(text):
    lines = [HEADER, "| Variable | Values | Default | Meaning |", "|---|---|---|---|"]
    lines += [describe(kind, arguments) for kind, arguments in read_rows(text)]
    return "\n".join(lines) + "\n"


def main():
    page = ROOT / "docs" / "env.md"
    wanted = render((ROOT / "base" / "env.def").read_text())
    if sys.argv[1:] == ["--check"]:
        if not page.exists() or page.read_text() != wanted:
            print("docs/env.md is not what base/env.def says; run tools/env_docs.py")
            return 1
        return 0
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    page.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
