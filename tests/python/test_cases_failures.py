"""Failures that users of other libraries met: ranks that are killed, stopped, or begin again.

The numbers are those of the project's case list. Method: jobs of their own, whose ranks are killed
or stopped by their pid; what the survivors say and how long they take is compared with what is
promised.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness import Programs, Ranks

_ISTHMUS = Path(sys.executable).with_name("isthmus")

# O-10: rank 2 kills itself in the middle of its tenth call. A program as users write them: nothing
# is caught, and the group is destroyed on the way out.
_KILLED = """
import os, signal, sys, threading, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("isthmus", init_method="file://" + os.environ["HARNESS_STORE"],
                        rank=rank, world_size=4)
tensor = torch.ones(int(sys.argv[1]))
dist.barrier()
try:
    for call in range(1000):
        begin = time.monotonic()
        if (rank, call) == (2, 9):
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
        dist.all_reduce(tensor)
finally:
    print("call", call, "failed after", time.monotonic() - begin, flush=True)
    begin = time.monotonic()
    dist.destroy_process_group()
    print("destroyed after", time.monotonic() - begin, flush=True)
"""


def _shared_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "isthmus" in name}


@pytest.mark.parametrize("nodes", ["aaaa", pytest.param("abcd", marks=pytest.mark.long)])
def test_a_rank_is_killed_in_mid_collective(nodes):
    """O-10: 64 MiB in shared memory and over TCP; the limit is half an hour."""
    before = _shared_files()
    text = f"import os; os.environ['ISTHMUS_NODE_ID'] = {nodes!r}[int(os.environ['RANK'])]"
    with Programs(text + _KILLED, 4, str(16 << 20)) as programs:
        ends = programs.ends(120)
    assert ends[2][0] == -signal.SIGKILL
    for rank in (0, 1, 3):
        code, output = ends[rank]
        assert code == 1, (rank, code, output)
        assert "rank 2 is gone" in output and "timed out" not in output, output
        failed, destroyed = map(float, re.findall(r"(?:failed|destroyed) after (\S+)", output))
        assert "call 9 failed" in output, output
        # From the beginning of the call, which itself takes a part of a second.
        assert failed < 5 and destroyed < 2, output
    assert _shared_files() <= before


# Run on the ranks.


def until_stopped(limit_s: float) -> dict[str, object]:
    """O-11: rank 3 stops before its seventh call; how the others' call ends."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=limit_s))
    tensor = torch.ones(1 << 18)
    for _ in range(6):
        dist.all_reduce(tensor, group=group)
    if rank == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    begin = time.monotonic()
    try:
        dist.all_reduce(tensor, group=group)
    except dist.DistBackendError as error:
        return {"took": time.monotonic() - begin, "text": str(error)}
    raise AssertionError("no error was raised")


def _wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "it did not stop"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("limit_s", "looked_s", "goes_on_s"),
    [(2, 1, 4), pytest.param(5, 3, 12, marks=pytest.mark.long)],
)
def test_a_stopped_rank_is_the_only_culprit(pool, limit_s, looked_s, goes_on_s):
    """O-11: at the limit, with call, number and limit; the command names it before."""
    ranks = pool(4)
    ranks.start(__file__, "until_stopped", limit_s)
    victim = ranks.ranks[3].process.pid
    _wait_until_stopped(victim)
    begin = time.monotonic()
    time.sleep(looked_s)
    told = subprocess.run([_ISTHMUS, "status"], capture_output=True, text=True, timeout=60)
    time.sleep(max(0.0, goes_on_s - (time.monotonic() - begin)))
    os.kill(victim, signal.SIGCONT)
    replies = [reply["value"] for reply in ranks.replies(60)]
    assert f"rank 3 is waited for: its process {victim} is stopped" in told.stdout, told
    for rank, reply in enumerate(replies[:3]):
        text = reply["text"]
        assert limit_s - 0.1 < reply["took"] < limit_s + 3, reply
        assert text.startswith(f"rank {rank}: all_reduce #7 "), text
        assert f"after {limit_s * 1000} ms" in text, text
        assert re.findall(r"waiting for (rank\S* [^(;:.]*\d)", text) == ["rank 3"], text
    assert replies[3]["took"] < 2, replies[3]


def begin_again(rounds: int, sleeper: int) -> None:
    """O-13: init, call, destroy, on one store and under one name, with no pause."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    files = Path(os.environ["HARNESS_STORE"] + ".port")
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
        files.with_suffix(".new").write_text(str(store.port))
        files.with_suffix(".new").rename(files)
    else:
        while not files.exists():
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(files.read_text()), size, False)
    begin, counts = time.monotonic(), []
    for turn in range(rounds):
        dist.init_process_group("isthmus", store=store, rank=rank, world_size=size)
        dist.all_reduce(own := torch.tensor([float(rank)]))
        assert own.item() == size * (size - 1) / 2
        if rank == 1 and turn == sleeper:
            # In the midst of its destruction, as far as the others can tell.
            time.sleep(1)
        dist.destroy_process_group()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert time.monotonic() - begin < 40
    # Only growth is a leak: rank 0 serves the store, and the others' connections end with them.
    assert max(counts) <= counts[1] + 2, counts
    # The server goes last.
    store.add("left", 1)
    while rank == 0 and store.add("left", 0) < size:
        time.sleep(0.01)


@pytest.mark.parametrize("nodes", ["aaaa", pytest.param("abcd", marks=pytest.mark.long)])
def test_begin_again_on_a_used_store(nodes):
    with Ranks(4, join=False, nodes=nodes) as ranks:
        ranks.call(__file__, "begin_again", 20, 4)


@pytest.mark.long
def test_begin_again_at_one_address():
    """O-13: as programs do that call init_process_group() twice: rank 0 opens the port anew."""
    text = """
import os, sys, torch, torch.distributed as dist
for turn in range(20):
    dist.init_process_group("isthmus")
    dist.all_reduce(own := torch.tensor([float(dist.get_rank())]))
    assert own.item() == 6
    dist.destroy_process_group()
"""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "4", "--no-python", sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


def test_status_of_nothing_is_no_error():
    """The command that users are told to call works where no rank of theirs runs."""
    done = subprocess.run(
        [_ISTHMUS, "status", "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and "groups" in json.loads(done.stdout), done
