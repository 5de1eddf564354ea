"""Failures are sentences: what disagrees, who is dead, who is late; and none of them hangs.

Method: jobs of their own, since they end badly. A victim is killed or stopped by its pid while the
others wait for it; they must name it within the time that is promised.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness import Ranks

# What survivors may take to name a dead rank.
_NAMED_WITHIN_S = 2.0

# Run on the ranks.


def disagree(kind: str) -> str:
    """Rank 1 calls something else; every rank gets the error, and the group stays usable."""
    odd = dist.get_rank() == 1
    try:
        if kind == "operation":
            if odd:
                dist.broadcast(torch.ones(8), 0)
            else:
                dist.all_reduce(torch.ones(8))
        elif kind == "dtype":
            dist.all_reduce(torch.ones(8, dtype=torch.float64 if odd else torch.float32))
        elif kind == "size":
            dist.all_reduce(torch.ones(9 if odd else 8))
        elif kind == "large size":
            dist.all_reduce(torch.ones(900_000 if odd else 800_000))
        elif kind == "reduction":
            dist.all_reduce(torch.ones(8), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
        elif kind == "root":
            dist.broadcast(torch.ones(8), 1 if odd else 0)
    except dist.DistBackendError as error:
        dist.all_reduce(tensor := torch.ones(4))
        assert tensor[0].item() == dist.get_world_size()
        return str(error)
    raise AssertionError("no error was raised")


def refusals() -> dict[str, str]:
    """What the plug-in refuses by itself, before any other rank is involved."""
    calls = {
        "bytes": lambda: dist.all_reduce(torch.ones(3).to(torch.float8_e8m0fnu)),
        "BAND": lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND),
        "AVG": lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG),
        "sparse": lambda: dist.broadcast(torch.eye(2).to_sparse(), 0),
        "size": lambda: dist.all_gather_single(torch.ones(3), torch.ones(3)),
        "type": lambda: dist.reduce_scatter_single(
            torch.ones(1, dtype=torch.float64), torch.ones(dist.get_world_size())
        ),
    }
    texts = {}
    for name, call in calls.items():
        try:
            call()
            raise AssertionError(f"{name} was accepted")
        except (RuntimeError, ValueError) as error:
            texts[name] = f"{type(error).__name__}: {error}"
    dist.barrier()
    return texts


def wait_for_victim(victim: int, how: str) -> dict[str, object]:
    """The victim answers with nothing; the others report the error and how long it took."""
    dist.barrier()
    if dist.get_rank() == victim:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "kill with a child":
            if os.fork() == 0:
                time.sleep(15)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)
    begin = time.monotonic()
    try:
        for _ in range(1000):
            dist.all_reduce(torch.ones(300_000))
    except dist.DistBackendError as error:
        took = time.monotonic() - begin
        try:
            dist.barrier()
            later = "nothing"
        except dist.DistBackendError as second:
            later = str(second)
        return {"took": took, "text": str(error), "later": later}
    raise AssertionError("no error was raised")


def absent() -> dict[str, object]:
    """Rank 1 stops; the limit of the group is 2 s."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier(group)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.ones(10), group=group)
    except dist.DistBackendError as error:
        return {"took": time.monotonic() - begin, "text": str(error)}
    raise AssertionError("no error was raised")


def aborted() -> str:
    """abort() wakes a thread that waits."""
    if dist.get_rank() != 0:
        return ""
    group = dist.group.WORLD
    threading.Timer(0.5, lambda: group.abort()).start()
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("no error was raised")


def _interrupt_when_in(function: str, done: threading.Event, sent: list[float]) -> None:
    """Sends this process a SIGINT once its main thread has stayed in a function of that name."""
    main = threading.main_thread().ident
    seen = 0
    while seen < 20 and not done.wait(0.01):
        frame = sys._current_frames().get(main)
        seen = seen + 1 if frame is not None and frame.f_code.co_name == function else 0
    if seen == 20:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)


def interrupted(kind: str) -> dict[str, object]:
    """Rank 0 gets a SIGINT while it waits for rank 1, which comes only then."""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(3)
    calls = {
        "wait": lambda: work.wait(),
        "all_reduce": lambda: dist.all_reduce(tensor),
        "all_gather": lambda: dist.all_gather([torch.empty(3), torch.empty(3)], tensor),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4)),
    }
    if dist.get_rank() == 1:
        store.wait(["interrupted"])
        work = dist.all_reduce(tensor, async_op=True) if kind == "wait" else None
        try:
            # What rank 0 gave before it was interrupted may be enough for this one.
            calls[kind]()
            if kind != "wait":
                dist.barrier()
        except dist.DistBackendError as error:
            return {"text": str(error)}
        return {"sum": tensor[0].item()}
    work = dist.all_reduce(tensor, async_op=True) if kind == "wait" else None
    done, sent = threading.Event(), []
    frame = "<lambda>" if kind == "wait" else kind
    killer = threading.Thread(target=_interrupt_when_in, args=(frame, done, sent))
    killer.start()
    reply = {}
    try:
        calls[kind]()
    except KeyboardInterrupt:
        reply["took"] = time.monotonic() - sent[0]
    finally:
        done.set()
        killer.join()
    store.set("interrupted", "1")
    try:
        if work is None:
            dist.barrier()
        else:
            work.wait()
            reply["sum"] = tensor[0].item()
    except dist.DistBackendError as error:
        reply["text"] = str(error)
    return reply


def interrupted_for_good() -> str:
    """The interruption leaves rank 0's program; rank 1 hears of it."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["interrupted"])
        try:
            dist.all_reduce(torch.ones(3))
            dist.barrier()
        except dist.DistBackendError as error:
            return str(error)
        raise AssertionError("rank 0 came")
    work = dist.all_reduce(torch.ones(3), async_op=True)
    killer = threading.Thread(
        target=_interrupt_when_in, args=("interrupted_for_good", threading.Event(), [])
    )
    killer.start()
    try:
        work.wait()
    finally:
        store.set("interrupted", "1")
    return ""


# Tests.


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", ["operation", "dtype", "size", "large size", "reduction", "root"])
def test_disagreement_names_both_sides(pool, size, kind):
    texts = pool(size).call(__file__, "disagree", kind)
    sides = {
        "operation": ("all_reduce", "broadcast"),
        "dtype": ("float32", "float64"),
        "size": ("8", "9"),
        "large size": ("800000", "900000"),
        "reduction": ("SUM", "MAX"),
        "root": ("0", "1"),
    }[kind]
    for text in texts:
        assert "rank 1" in text or "rank 0" in text, text
        assert all(side in text for side in sides), text
        if size > 2:
            assert "rank 1" in text, text


def test_refusals(pool):
    for texts in pool(2).call(__file__, "refusals"):
        assert "all_reduce SUM on float8_e8m0fnu" in texts["bytes"]
        assert "BAND on float32" in texts["BAND"]
        assert "AVG on bool" in texts["AVG"]
        assert "parse" in texts["sparse"]
        assert texts["size"].startswith("ValueError") and "expected 6, got 3" in texts["size"]
        assert texts["type"].startswith("ValueError")


@pytest.mark.parametrize(
    "nodes,victim,how",
    [
        ("aa", 1, "kill"),
        ("aa", 1, "kill with a child"),
        ("aaaa", 2, "kill"),
        ("aaaa", 2, "kill with a child"),
        ("aaaa", 0, "kill"),
        ("aaaa", 0, "kill with a child"),
        ("ab", 1, "kill with a child"),
        ("aabb", 2, "kill"),
    ],
)
def test_a_dead_rank_is_named(nodes, victim, how):
    with Ranks(len(nodes), nodes=nodes) as ranks:
        ranks.start(__file__, "wait_for_victim", victim, how)
        replies = ranks.replies(30)
        for rank, reply in enumerate(replies):
            if rank == victim:
                assert "lost" in reply
                continue
            assert "value" in reply, (reply, ranks.ranks[rank].written())
            value = reply["value"]
            assert f"rank {victim}" in value["text"], value
            assert value["took"] < _NAMED_WITHIN_S, value
            assert f"rank {victim}" in value["later"], value


def test_a_stopped_rank_is_named_at_the_limit():
    with Ranks(2) as ranks:
        ranks.start(__file__, "absent")
        reply = ranks.ranks[0].receive(time.monotonic() + 20)
        assert "value" in reply, reply
        assert 1.8 < reply["value"]["took"] < 5, reply
        assert "rank 1" in reply["value"]["text"], reply
        ranks.ranks[1].kill()
        ranks.broken = True


def test_abort_wakes_a_waiter():
    with Ranks(2) as ranks:
        ranks.start(__file__, "aborted")
        replies = ranks.replies(20)
        assert "abort" in replies[0]["value"], replies
        ranks.broken = True


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all_single"])
@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_ctrl_c_ends_a_synchronous_call_and_its_group(kind, nodes):
    with Ranks(2, nodes=nodes) as ranks:
        ranks.start(__file__, "interrupted", kind)
        waiter, peer = ranks.replies(20)
        assert waiter["value"]["took"] < 1, waiter
        for reply in (waiter, peer):
            assert "rank 0" in reply["value"]["text"], reply
            assert "interrupt" in reply["value"]["text"], reply


def test_ctrl_c_ends_a_wait_and_not_its_work():
    with Ranks(2) as ranks:
        ranks.start(__file__, "interrupted", "wait")
        waiter, peer = ranks.replies(20)
        assert waiter["value"]["took"] < 1, waiter
        assert waiter["value"]["sum"] == peer["value"]["sum"] == 2, (waiter, peer)


def test_ctrl_c_ends_a_program_that_waits():
    """Nothing catches the interruption: both processes end by themselves, and soon."""
    with Ranks(2) as ranks:
        ranks.start(__file__, "interrupted_for_good")
        waiter, peer = ranks.replies(20)
        assert "lost" in waiter and "KeyboardInterrupt" in ranks.ranks[0].written(), waiter
        assert "rank 0" in peer["value"], peer
        assert ranks.ranks[0].process.wait(5) == -signal.SIGINT
