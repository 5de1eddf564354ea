"""Goal: a shim shows one function and asks only for what its libraries define.
Method: reads the symbol tables of the installed package, and plants breaches in small modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import isthmus
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_symbols  # noqa: E402

TORCH = Path(torch.__file__).parents[1]


def test_the_installed_shims():
    assert list(check_symbols.check_shims(Path(isthmus.__file__).parent / "_torch", [TORCH])) == []


def module(folder: Path, text: str, *options: str) -> Path:
    source = folder / "_C_9_9.c"
    source.write_text(text)
    path = source.with_suffix(".so")
    command = ["gcc", "-shared", "-fPIC", "-o", str(path), str(source), *options]
    subprocess.run(command, check=True, timeout=60)
    return path


@pytest.mark.parametrize("text, found", [
    ("int PyInit__C_9_9(void) { return 0; }", ""),
    ("int PyInit__C_9_9(void) { return 0; } int more;", "shows 2 symbols"),
    ("int nowhere(void); int PyInit__C_9_9(void) { return nowhere(); }", "asks for nowhere, which"),
    ("int PyErr_Occurred(void); int PyInit__C_9_9(void) { return PyErr_Occurred(); }", ""),
    ("int puts(const char *); int PyInit__C_9_9(void) { return puts(\"\"); }", ""),
])
def test_a_planted_breach_is_named(tmp_path, text, found):
    findings = list(check_symbols.check_shim(module(tmp_path, text), TORCH))
    assert len(findings) == bool(found), findings
    assert found in "".join(findings)


def test_a_library_that_is_not_there_is_named(tmp_path):
    lost = tmp_path / "liblost.so"
    module(tmp_path, "int lost;", "-Wl,-soname,liblost.so").rename(lost)
    text = "int PyInit__C_9_9(void) { return 0; }"
    shim = module(tmp_path, text, "-Wl,--no-as-needed", str(lost))
    lost.unlink()
    assert "liblost.so, which is nowhere" in "".join(check_symbols.check_shim(shim, TORCH))


def test_a_wheel_that_auditwheel_has_not_seen_is_refused():
    wheel = Path("isthmus-0.1.0-cp311-cp311-linux_x86_64.whl")
    assert "auditwheel" in "".join(check_symbols.check_wheel(wheel, [TORCH]))


def test_files_of_a_wheel_stay_inside_and_old_enough(tmp_path):
    path = module(tmp_path, "int puts(const char *); int f(void) { return puts(\"\"); }",
                  "-Wl,-rpath,/usr/lib:$ORIGIN/..:$ORIGIN")
    findings = "".join(check_symbols.check_wheel_file(path, tmp_path, (2, 1), {"libc.so.6"}))
    assert "looks for libraries in /usr/lib, which is outside" in findings
    assert "looks for libraries in $ORIGIN/.., which is outside" in findings
    assert findings.count("outside") == 2
    assert "newer than manylinux_2_1" in findings
    findings = "".join(check_symbols.check_wheel_file(path, tmp_path, (2, 99), set()))
    assert "libc.so.6, which the wheel does not bring" in findings and "newer" not in findings
