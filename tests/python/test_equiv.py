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


# Each rank says which node it is on: ranks 2k and 2k + 1 are on node k.
_TWO_A_NODE = 'ISTHMUS_NODE_ID=node$((RANK / 2)) exec "$@"'
# One of each family, for what is repeated in another setting.
_FAMILIES = "ddp_static,zero1,fsdp2,fsdp1_full,sequence,pipe_inter"


def _run(size: int, front: list[str], more: list[str], **variables: str) -> str:
    """equiv.py on that many ranks, each started with `front` before its command."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    command += ["--nproc-per-node", str(size), *front, sys.executable, str(_SCRIPT)]
    command += ["--backend", "isthmus", *more]
    with subprocess.Popen(
        command,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=480)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate(timeout=60)
            raise AssertionError(f"no end within 480 s:\n{output}") from None
    assert process.returncode == 0, output
    assert "PASS" in output and "FAIL" not in output, output
    return output


@pytest.mark.parametrize(
    ("size", "more"),
    # Two sum in one order only: there is less to repeat.
    [(2, ["--once"]), (4, []), pytest.param(2, [], marks=pytest.mark.long)],
)
def test_equal_to_one_process(size, more):
    _run(size, [], more)


def test_equal_to_one_process_on_two_nodes():
    """Gradients and parameters cross the pretended neck: two-level schedules and TCP."""
    cases = ["ddp", "fsdp2", "hsdp"]
    front = ["bash", "-c", _TWO_A_NODE, "bash"]
    output = _run(4, front, ["--cases", ",".join(cases)])
    assert output.count("PASS") == len(cases), output


@pytest.mark.long
def test_every_strategy_on_two_nodes():
    _run(4, ["bash", "-c", _TWO_A_NODE, "bash"], [])


@pytest.mark.parametrize(
    ("size", "cases"),
    [
        (2, _FAMILIES),
        pytest.param(2, "all", marks=pytest.mark.long),
        pytest.param(4, "all", marks=pytest.mark.long),
    ],
)
def test_equal_where_torch_compares_the_calls(size, cases):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: torch puts a backend of its own around ours.

    Without PowerSGD: it communicates in callbacks, whose calls come anywhere between the others,
    and torch compares all calls in one order.
    """
    more = ["--once", "--cases", cases, "--without", "ddp_powersgd"]
    _run(size, [], more, TORCH_DISTRIBUTED_DEBUG="DETAIL")
