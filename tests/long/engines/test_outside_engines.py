"""Engines from outside of torch train over isthmus as they do over Gloo, loss by loss.

Method: program.py under torchrun on 2 ranks, once a backend. Run by tests/long/engines.sh.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).with_name("program.py")
# DeepSpeed compiles a part of itself on its first use.
_LIMIT_S = 600


def _losses(engine: str, backend: str) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(_PROGRAM), engine, backend]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    own["GLOO_SOCKET_IFNAME"] = "lo"
    own["PATH"] = f"{Path(sys.executable).parent}:{own['PATH']}"
    with subprocess.Popen(
        command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output[-4000:] + errors[-4000:]
    lines = [line for line in output.splitlines() if line.startswith("losses ")]
    assert len(lines) == 1, output[-4000:] + errors[-4000:]
    return json.loads(lines[0].removeprefix("losses "))


@pytest.mark.parametrize("engine", ["accelerate", "trainer", "zero1", "zero2", "zero3"])
def test_losses_are_those_of_gloo(engine):
    ours = _losses(engine, "isthmus")
    assert len(ours) >= 6 and ours[-1] < ours[0]
    assert ours == pytest.approx(_losses(engine, "gloo"), rel=1e-6)
