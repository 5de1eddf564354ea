"""Training over isthmus equals training in one process, for the strategies that torch offers.

Method: torchrun starts equiv/equiv.py, which compares losses, parameters and bits; its exit status
is the verdict, its table is in the error.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import environment

_SCRIPT = Path(__file__).parent / "equiv" / "equiv.py"


@pytest.mark.parametrize("size", [2, 4])
def test_equal_to_one_process(size):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(size), str(_SCRIPT), "--backend", "isthmus"]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=480)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate(timeout=60)
            raise AssertionError(f"no end within 480 s:\n{output}") from None
    assert process.returncode == 0, output
    assert "PASS" in output and "FAIL" not in output, output
