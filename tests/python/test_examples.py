"""The examples run as their first lines say, over isthmus; the diff against Gloo is one word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import environment

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "ranks", "more"),
    [("ddp", 2, []), ("fsdp2_hsdp", 4, ["--replicas", "2"]), ("tp_pp", 4, [])],
)
def test_example(name, ranks, more):
    script = _EXAMPLES / name / f"{name}.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(script), *more]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "isthmus" in done.stdout, done.stdout
    assert len(script.read_text().splitlines()) <= 60
