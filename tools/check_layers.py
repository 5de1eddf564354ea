#!/usr/bin/env python3
"""Fails when an #include points against the layers.

The one source of truth is DEPS of isthmus_module() in each folder's CMakeLists.txt. Rules:
  - a module includes itself and the modules of its DEPS, nothing else of the tree; DEPS have no
    cycle;
  - a transport backend (transport/<backend>/) includes no sibling backend;
  - collectives/algorithms/ includes schedule/, topology/, base/ and itself only;
  - plugins/<host>/ includes modules, its own folder and no sibling plug-in, unless it declares
    DEPS itself;
  - tests/, perf/, tools/ and examples/ may include everything, but nobody includes them;
  - an #include in quotes names the file from the repository's root.

Usage: tools/check_layers.py [ROOT]
"""

import pathlib
import re
import sys

import repo_files

FREE_FOLDERS = ("tests", "perf", "tools", "examples")
ALGORITHMS = "collectives/algorithms"
ALGORITHMS_MAY = ("schedule", "topology", "base", ALGORITHMS)
MODULE = re.compile(r"\bisthmus_module\s*\(\s*(\w+)([^)]*)\)")
KEYWORD = re.compile(r"APART|DEPS|THIRD_PARTY|SUBDIRS")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def read_modules(root):
    """Maps each module's folder ("base", "plugins/nccl") to the list of its DEPS."""
    modules = {}
    for path in repo_files.files(root, "CMakeLists.txt"):
        text = re.sub(r"#[^\n]*", "", path.read_text())
        for match in MODULE.finditer(text):
            deps = []
            keyword = ""
            for word in match.group(2).split():
                if KEYWORD.fullmatch(word):
                    keyword = word
                elif keyword == "DEPS":
                    deps.append(word)
            modules[path.parent.relative_to(root).as_posix()] = deps
    return modules


def find_cycle(modules):
    """One cycle of DEPS as a list of folders, or an empty list."""
    done = set()

    def visit(name, trail):
        if name in trail:
            return trail[trail.index(name):] + [name]
        if name in done or name not in modules:
            return []
        for dep in modules[name]:
            cycle = visit(dep, trail + [name])
            if cycle:
                return cycle
        done.add(name)
        return []

    for module in modules:
        cycle = visit(module, [])
        if cycle:
            return cycle
    return []


def below(path, folder):
    return path == folder or path.startswith(folder + "/")


def owner(path, modules):
    """The innermost module folder that holds the path, or an empty string."""
    holders = [folder for folder in modules if below(path, folder)]
    return max(holders, key=len, default="")


def breach(source, included, modules, folders):
    """The rule that `source` breaks when it includes `included`, or an empty string."""
    top = source.split("/")[0]
    target_top = included.split("/")[0]
    if "/" not in included:
        return "an #include in quotes names the file from the repository's root"
    if target_top not in folders or top in FREE_FOLDERS:
        return ""
    if target_top in FREE_FOLDERS:
        return f"nothing outside {', '.join(FREE_FOLDERS)} includes {target_top}/"
    source_parts = source.split("/")
    target_parts = included.split("/")
    if top == "transport" == target_top and len(source_parts) > 2 and len(target_parts) > 2:
        if source_parts[1] != target_parts[1]:
            return (f"a transport backend includes no sibling backend "
                    f"(transport/{source_parts[1]}/ includes transport/{target_parts[1]}/)")
    if below(source, ALGORITHMS) and not any(below(included, ok) for ok in ALGORITHMS_MAY):
        return f"{ALGORITHMS}/ includes {', '.join(ok + '/' for ok in ALGORITHMS_MAY)} only"
    return module_breach(source, included, modules)


def module_breach(source, included, modules):
    """As breach(), for the rules about modules and plug-ins alone."""
    module = owner(source, modules)
    target = owner(included, modules)
    if module and target:
        if target == module or target in modules[module]:
            return ""
        allowed = " ".join(modules[module]) or "nothing"
        return f"module {module} declares DEPS {allowed} in {module}/CMakeLists.txt, not {target}"
    if below(included, "plugins"):
        if not below(source, "plugins"):
            return "arrows point down only: nothing below plugins/ includes a plug-in"
        if source.split("/")[1] != included.split("/")[1]:
            return "a plug-in includes no sibling plug-in"
    return ""


def check(root):
    """Every breach of the tree as a printable line."""
    root = pathlib.Path(root)
    modules = read_modules(root)
    if not modules:
        return [f"{root}: no isthmus_module() in any CMakeLists.txt"]
    findings = []
    cycle = find_cycle(modules)
    if cycle:
        findings.append(f"CMakeLists.txt: DEPS run in a circle: {' -> '.join(cycle)}")
    for folder, deps in modules.items():
        for dep in deps:
            if dep not in modules:
                findings.append(f"{folder}/CMakeLists.txt: DEPS names {dep}, which is no module")
    paths = repo_files.files(root, ".h", ".cc")
    names = [path.relative_to(root).as_posix() for path in paths]
    folders = {name.split("/")[0] for name in names if "/" in name} | set(modules)
    for path, name in zip(paths, names):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            rule = breach(name, match.group(1), modules, folders) if match else ""
            if rule:
                findings.append(f'{name}:{number}: #include "{match.group(1)}": {rule}')
    return findings


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    findings = check(root)
    for line in findings:
        print(line)
    if findings:
        print(f"check_layers: {len(findings)} breaches")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
