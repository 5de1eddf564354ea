"""Goal: check_layers names file, line, breach and rule, and lets a legal tree pass.
Method: plants one breach of each rule in a small legal tree."""

import pathlib
import subprocess
import sys

import check_layers
import pytest

TOOLS = pathlib.Path(check_layers.__file__).parent


def test_the_repository_is_legal():
    assert check_layers.check(TOOLS.parent) == []


def test_a_legal_tree_passes(tree):
    assert check_layers.check(tree("perf/x.cc", '#include "collectives/algorithms/ring.h"\n')) == []


@pytest.mark.parametrize("name, include, rule", [
    ("base/up.cc", "schedule/step.h", "module base declares DEPS nothing"),
    ("schedule/up.cc", "collectives/select.h", "module schedule declares DEPS base transport in"),
    ("transport/tcp/side.cc", "transport/shm/lane.h", "includes no sibling backend"),
    ("collectives/algorithms/low.cc", "transport/endpoint.h", "includes schedule/, topology/,"),
    ("collectives/algorithms/up.cc", "collectives/select.h", "includes schedule/, topology/,"),
    ("collectives/out.cc", "tests/tool.h", "nothing outside tests"),
    ("base/here.cc", "fd.h", "from the repository's root"),
    ("collectives/plug.cc", "plugins/torch/types.h", "arrows point down only"),
    ("plugins/torch/side.cc", "plugins/nccl/net.h", "no sibling plug-in"),
])
def test_a_planted_breach_is_named(tree, name, include, rule):
    tree("plugins/torch/types.h", "#pragma once\n")
    findings = check_layers.check(tree(name, f'// a comment\n#include "{include}"\n'))
    assert len(findings) == 1, findings
    assert findings[0].startswith(f'{name}:2: #include "{include}": ')
    assert rule in findings[0]


def test_a_circle_of_deps_is_named(tree):
    findings = check_layers.check(tree("base/CMakeLists.txt", "isthmus_module(base DEPS schedule)"))
    assert any("DEPS run in a circle" in line for line in findings)


def test_an_unknown_dep_is_named(tree):
    findings = check_layers.check(tree("base/CMakeLists.txt", "isthmus_module(base DEPS bass)"))
    assert findings == ["base/CMakeLists.txt: DEPS names bass, which is no module"]


def test_the_command_fails_on_a_breach(tree):
    root = tree("base/up.cc", '#include "schedule/step.h"\n')
    done = subprocess.run([sys.executable, TOOLS / "check_layers.py", root], capture_output=True,
                          text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout.endswith("check_layers: 1 breaches\n")
