"""Reads C++ just well enough for the style checks: code without comments, function lengths.

A heuristic, not a parser: it assumes code that clang-format has laid out.
"""

import re

# Comments, raw strings, strings, character literals (digit separators are no literals).
SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])\'(?:[^\'\\\n]|\\.)+\'', re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
PREFIX = re.compile(r"^(?:\s|(?:public|private|protected)\s*:|template\s*<[^{};]*>|static|inline"
                    r"|constexpr|typedef|extern\s*\"\"|\[\[[^\]]*\]\])*")
ACCESS = re.compile(r"^\s*(?:(?:public|private|protected)\s*:\s*)*")
SCOPE = re.compile(r"^(?:namespace|class|struct|union|enum)\b")
INITIALISERS = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:)")


def blank(match):
    """Keeps line breaks, and the quotes of a string, so that positions still mean lines."""
    text = match.group()
    quote = '""' if text.startswith(('"', "R")) else ""
    return quote + "\n" * text.count("\n")


def code_only(text):
    """The text without comments and the contents of literals, line for line."""
    return SKIPPED.sub(blank, text)


def without_directives(code):
    return DIRECTIVE.sub(lambda match: "\n" * match.group().count("\n"), code)


def skip_braces(code, start):
    """Position after the brace that closes the one at `start`."""
    depth = 0
    for position in range(start, len(code)):
        if code[position] == "{":
            depth += 1
        elif code[position] == "}":
            depth -= 1
            if depth == 0:
                return position + 1
    return len(code)


def is_function(header):
    """Whether the text before an opening brace announces a function's body."""
    rest = PREFIX.sub("", header).lstrip()
    return "(" in rest and not SCOPE.match(rest)


def is_initialiser(header):
    """Whether the brace after `header` initialises a member: Foo(int x) : x_{x} {}."""
    before = header.rstrip()
    named = bool(before) and (before[-1].isalnum() or before[-1] in "_>")
    return bool(INITIALISERS.search(header)) and named


def functions(text):
    """(first line, last line, header) of each function outside other functions, 1-based."""
    code = without_directives(code_only(text))
    found = []
    begin = position = parens = 0
    while position < len(code):
        letter = code[position]
        if letter in "()":
            parens += 1 if letter == "(" else -1
        elif letter == "{":
            header = code[begin:position]
            after = skip_braces(code, position)
            if parens > 0 or is_initialiser(header):
                position = after
                continue
            if is_function(header):
                first = begin + ACCESS.match(header).end()
                found.append((code.count("\n", 0, first) + 1, code.count("\n", 0, after) + 1,
                              " ".join(code[first:position].split())))
                position = begin = after
                continue
            begin = position + 1
        elif letter in ";}" and parens == 0:
            begin = position + 1
        position += 1
    return found
