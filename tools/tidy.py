#!/usr/bin/env python3
"""Style as a test: limits, banned tokens, documentation rules. CONTRIBUTING.md says why.

Each rule is one function that yields (path, line, message). What a rule lets pass on purpose is
in ALLOWED, with its reason.

Usage: tools/tidy.py [ROOT]
"""

import ast
import fnmatch
import pathlib
import re
import sys

import cpp_text
import env_docs
import repo_files

LINE_COLUMNS = 100
FILE_LINES = 600
TEST_FILE_LINES = 800
FUNCTION_LINES = 70
README_LINES = 40

CPP = (".cc", ".h")
TEXT = CPP + (".py", ".md", ".sh", ".cmake", ".txt", ".toml", ".json", ".def", ".yml", ".map",
              "Makefile", "LICENSE", "run")

# (rule, path pattern, reason)
ALLOWED = (
    ("getenv", "base/env.cc", "the one place that reads the environment"),
    ("getenv", "tests/net_plugin/reference_plugin.cc", "stands for a plug-in of somebody else"),
    ("stdout", "tools/*", "a command's output"),
    ("stdout", "perf/*", "a benchmark's table"),
    ("stdout", "examples/*", "an example's output"),
    ("stdout", "tests/*", "a test prints its seed"),
    ("using-namespace", "plugins/torch/shim.cc", "inside the module's initialiser only"),
    ("sleep", "tests/python/test_errors.py", "ranks that are late or absent on purpose"),
    ("sleep", "tests/python/test_cases.py", "ranks that are late on purpose"),
    ("sleep", "tests/python/test_hooks.py", "ranks that are late on purpose"),
    ("sleep", "tests/python/test_observing.py", "a rank that is late on purpose"),
    ("sleep", "tests/python/test_checkpoint.py", "ranks that are late on purpose"),
    ("sleep", "tests/python/test_groups.py", "ranks that are late on purpose"),
    ("sleep", "tests/python/test_cases_failures.py", "processes that stand still on purpose"),
    ("assert", "tests/*", "a broken test may end in any way"),
    ("machine-path", "tools/tidy.py", "names the banned paths"),
    ("machine-path", "tests/tools/tidy_test.py", "plants the banned paths"),
    ("unfinished", "tools/tidy.py", "names the banned words"),
    ("unfinished", "tests/tools/tidy_test.py", "plants the banned words"),
)

# (rule, pattern, folder it applies to or "", message)
BANNED_CPP = (
    ("getenv", r"\b(?:secure_)?getenv\b", "", "read the environment through base/env.h"),
    ("stdout", r"\bstd::cout\b|(?<![\w:])(?:std::)?(?:printf|puts|putchar)\s*\(", "",
     "the library writes nothing to stdout; use base/log.h"),
    ("assert", r"(?<![\w.])assert\s*\(", "", "use ISTHMUS_CHECK: it also holds in release builds"),
    ("using-namespace", r"\busing\s+namespace\b", "", "name what is used"),
    ("sleep", r"\b(?:sleep_for|sleep_until|usleep|nanosleep)\b|(?<![\w.])sleep\s*\(", "tests",
     "a sleep is no synchronisation: wait for the event, with a deadline"),
    # unique_ptr<T>(new T) stays legal: make_unique cannot reach a private constructor.
    ("naked-new", r"^(?!.*unique_ptr<[^;]*\bnew\b).*\bnew\b\s+(?!\()[\w:]", "",
     "use std::make_unique"),
    ("naked-new", r"(?<!=)(?<!= )(?<!operator )\bdelete\b\s*(?:\[\s*\])?\s*[\w(*]", "",
     "let an owner free it"),
)
BANNED_PYTHON = (
    ("sleep", r"\btime\.sleep\s*\((?!0\))", "tests",
     "a sleep is no synchronisation: wait for the event, with a deadline"),
)
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!\(#\d+\))")
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(?:work|root)/")
VARIABLE = re.compile(r"\bISTHMUS_[A-Z0-9_]*[A-Z0-9]\b")
MADE_NAME = re.compile(r"(?:^\s*#\s*define\s+|\b(?:option|set)\(|^)(ISTHMUS_\w+)(?=[\s(?:=])",
                       re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


class Tree:
    """The repository's files and their text, each read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.texts = {}
        for path in repo_files.files(self.root, *TEXT):
            name = path.relative_to(self.root).as_posix()
            self.texts[name] = path.read_text(errors="replace")

    def names(self, *suffixes):
        return [name for name in self.texts if name.endswith(suffixes)]


def line_lengths(tree):
    for name in tree.names(*CPP, ".py"):
        for number, line in enumerate(tree.texts[name].splitlines(), 1):
            if len(line) > LINE_COLUMNS:
                yield name, number, f"line has {len(line)} columns, at most {LINE_COLUMNS}"


def file_lengths(tree):
    for name in tree.names(*CPP, ".py"):
        limit = TEST_FILE_LINES if name.startswith("tests/") else FILE_LINES
        lines = len(tree.texts[name].splitlines())
        if lines > limit:
            yield name, lines, f"file has {lines} lines, at most {limit}"


def cpp_function_lengths(tree):
    for name in tree.names(*CPP):
        for first, last, header in cpp_text.functions(tree.texts[name]):
            if last - first + 1 > FUNCTION_LINES:
                yield name, first, (f"function has {last - first + 1} lines, at most "
                                    f"{FUNCTION_LINES}: {header[:60]}")


def python_function_lengths(tree):
    for name in tree.names(".py"):
        try:
            module = ast.parse(tree.texts[name])
        except SyntaxError as error:
            yield name, error.lineno or 1, f"does not parse: {error.msg}"
            continue
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield name, node.lineno, (f"function {node.name} has {lines} lines, at most "
                                              f"{FUNCTION_LINES}")


def allowed(rule, name):
    return any(rule == entry and fnmatch.fnmatch(name, pattern) for entry, pattern, _ in ALLOWED)


def banned(tree, names, table, clean):
    for name in names:
        lines = clean(tree.texts[name]).splitlines()
        for rule, pattern, folder, message in table:
            if allowed(rule, name) or (folder and not name.startswith(folder + "/")):
                continue
            for number, line in enumerate(lines, 1):
                match = re.search(pattern, line)
                if match and not line.lstrip().startswith("#include"):
                    yield name, number, f"{rule}: {line.strip()[:40]!r}: {message}"


def banned_cpp(tree):
    yield from banned(tree, tree.names(*CPP), BANNED_CPP, cpp_text.code_only)


def banned_python(tree):
    yield from banned(tree, tree.names(".py"), BANNED_PYTHON, str)


def unfinished(tree):
    for name, text in tree.texts.items():
        if not allowed("unfinished", name):
            for number, line in enumerate(text.splitlines(), 1):
                if UNFINISHED.search(line):
                    yield name, number, "unfinished: finish it, or name the issue: TODO(#12)"


def machine_paths(tree):
    for name, text in tree.texts.items():
        if not allowed("machine-path", name):
            for number, line in enumerate(text.splitlines(), 1):
                match = MACHINE_PATH.search(line)
                if match:
                    yield name, number, f"machine-path: {match.group()} exists on one machine only"


def documented_variables(tree):
    """An ISTHMUS_ name in a page is a variable of env.def, a macro, or a build option."""
    known = env_docs.names(tree.root)
    makers = tree.names(*CPP, "CMakeLists.txt", ".cmake", "Makefile")
    for name in makers:
        known.update(MADE_NAME.findall(tree.texts[name]))
    for name in tree.names(".md"):
        for number, line in enumerate(tree.texts[name].splitlines(), 1):
            for variable in VARIABLE.findall(line):
                if variable not in known:
                    yield name, number, f"{variable} is not in base/env.def"


def markdown_titles(tree):
    for name in tree.names(".md"):
        text = re.sub(r"^(```|~~~).*?^\1", "", tree.texts[name], flags=re.DOTALL | re.MULTILINE)
        titles = len(re.findall(r"^# ", text, re.MULTILINE))
        if titles != 1:
            yield name, 1, f"page has {titles} titles (# ...), expected one"


def module_readmes(tree):
    for name in tree.names("/README.md"):
        lines = len(tree.texts[name].splitlines())
        if lines > README_LINES:
            yield name, lines, f"a folder's README has {lines} lines, at most {README_LINES}"


def dead_headers(tree):
    """A header of the tree that no file includes; its own .cc counts as a user."""
    used = set()
    for name in tree.names(*CPP):
        used.update(INCLUDE.findall(tree.texts[name]))
    for name in tree.names(".h"):
        if name not in used:
            yield name, 1, "no file includes this header"


RULES = (line_lengths, file_lengths, cpp_function_lengths, python_function_lengths, banned_cpp,
         banned_python, unfinished, machine_paths, documented_variables, markdown_titles,
         module_readmes, dead_headers)


def check(root):
    """Every finding as a printable line, in the order of the rules."""
    tree = Tree(root)
    return [f"{name}:{line}: {message}" for rule in RULES for name, line, message in rule(tree)]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    findings = check(root)
    for line in findings:
        print(line)
    if findings:
        print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
