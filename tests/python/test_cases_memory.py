"""Failures that users of other libraries met: messages past 2 GiB, and a small /dev/shm.

The numbers are those of the project's case list. Method of the second: perf programs in a mount
namespace of their own, in which /dev/shm is as small as a container's.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness import Ranks, environment

_PERF = Path(sys.executable).with_name("all_reduce_perf")

# Run on the ranks.


def _pattern(count: int) -> torch.Tensor:
    """Byte i is (31 i + 7) mod 251, which repeats after 251 bytes."""
    period = ((31 * torch.arange(251) + 7) % 251).to(torch.uint8)
    return period.repeat(count // 251 + 1)[:count]


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().data).hexdigest()


def past_two_gib() -> list[str]:
    """O-02: one transfer of more bytes than the kernel moves at once, and 32 bits count."""
    rank, count = dist.get_rank(), 2**31 + 4103
    own = _pattern(count) if rank == 0 else torch.zeros(count, dtype=torch.uint8)
    begin = time.monotonic()
    if rank == 0:
        dist.send(own, 1)
    else:
        dist.recv(own, 0)
    seen = [_digest(own)]
    if rank == 1:
        own.zero_()
    dist.broadcast(own, 0)
    seen.append(_digest(own))
    dist.all_reduce(own, dist.ReduceOp.MAX)
    seen.append(_digest(own))
    assert time.monotonic() - begin < 120
    tail = (31 * torch.arange(count - 4103, count) + 7) % 251
    assert torch.equal(own[-4103:], tail.to(torch.uint8))
    return seen


@pytest.mark.long
@pytest.mark.parametrize(
    ("nodes", "algorithm"),
    [("aa", ""), ("ab", ""), ("aa", "pull_broadcast"), ("aa", "pull_all_reduce")],
)
def test_one_transfer_past_two_gib(nodes, algorithm):
    """By shared memory, TCP, and copies between processes, which end at 0x7ffff000 bytes a call."""
    with Ranks(2, nodes=nodes, ISTHMUS_ALGO=algorithm) as ranks:
        digests = ranks.call(__file__, "past_two_gib", limit_s=400)
    assert len({digest for each in digests for digest in each}) == 1


def _in_small_shm(room: int, **more: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """8 ranks reduce 32 MiB where /dev/shm has that many bytes; the seconds it took."""
    script = f"mount -t tmpfs -o size={room} none /dev/shm && exec \"$@\""
    command = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script, "bash"]
    command += [str(_PERF), "--ranks", "8", "-b", "32M", "-e", "32M", "-n", "1", "-w", "0"]
    begin = time.monotonic()
    done = subprocess.run(
        [*command, "-c", "1", "--json", "-"],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return time.monotonic() - begin, done


@pytest.fixture(scope="module")
def namespaces() -> None:
    """Where a user may make no namespaces these tests cannot be run."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("user namespaces are not allowed here")


def _right(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done
    rows = json.loads(done.stdout)["rows"]
    assert rows and all(row["wrong"] == 0 for row in rows), rows


def _bytes_needed() -> int:
    _, done = _in_small_shm(1 << 20, ISTHMUS_SHM_NAMED="1")
    return int(re.search(r"cannot hold (\d+) bytes", done.stderr).group(1))


def test_a_small_dev_shm_is_not_needed(namespaces):
    _, done = _in_small_shm(16 << 20)
    _right(done)
    assert done.stderr == ""


@pytest.mark.parametrize("room_mb", [pytest.param(16, marks=pytest.mark.long), 64])
def test_a_small_dev_shm_is_worked_around(namespaces, room_mb):
    """O-19: with files in /dev/shm. One warning says what is needed, what is free, and the cure."""
    _, done = _in_small_shm(room_mb << 20, ISTHMUS_SHM_NAMED="1")
    _right(done)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines
    assert re.search(r"/dev/shm cannot hold \d+ bytes \(\d+ are free\)", lines[0]), lines
    assert "--shm-size" in lines[0] and "TCP" in lines[0], lines


@pytest.mark.parametrize(
    "spare_kb",
    [300, *(pytest.param(spare, marks=pytest.mark.long) for spare in (0, 100, 600, 1200, 3000))],
)
def test_dev_shm_ends_at_any_place(namespaces, spare_kb):
    """There is room for the segments of two ranks, and for some or none of their other files."""
    room = 2 * _bytes_needed() + (spare_kb << 10)
    _, done = _in_small_shm(room, ISTHMUS_SHM_NAMED="1")
    _right(done)
    assert "SIGBUS" not in done.stderr and done.stderr.count("cannot hold") <= 1, done.stderr


@pytest.mark.parametrize("segments", [pytest.param(0, marks=pytest.mark.long), 2])
def test_a_small_dev_shm_is_an_error_where_that_is_asked_for(namespaces, segments):
    """Also of those ranks that found room: they do not wait for the others until a limit."""
    room = segments * _bytes_needed() + (100 << 10)
    took, done = _in_small_shm(room, ISTHMUS_SHM_NAMED="1", ISTHMUS_STRICT="1")
    assert done.returncode != 0 and took < 5, (took, done)
    assert "--shm-size" in done.stderr, done.stderr
