"""Processes end cleanly, whatever was destroyed before, and forked children disturb nobody."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from harness import Programs, Ranks

_SCRIPT = """
import os, sys, threading, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
store = dist.FileStore(os.environ["HARNESS_STORE"], 2)
dist.init_process_group("isthmus", store=store, rank=rank, world_size=2)
how = sys.argv[1]
dist.all_reduce(torch.ones(1000))
works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
futures = [w.get_future().then(lambda f: f.value()[0].sum()) for w in works]
if "wait" in how:
    for work in works:
        work.wait()
if "functional" in how:
    import torch.distributed._functional_collectives as functions
    for _ in range(3):
        functions.all_reduce(torch.ones(10), "sum", dist.group.WORLD) + 1
if "callback" in how:
    # The last works and the group go on a completion lane.
    over = threading.Event()

    def end(_):
        works.clear()
        dist.destroy_process_group()
        over.set()

    dist.all_reduce(torch.ones(10), async_op=True).get_future().then(end)
    sys.exit(0 if over.wait(60) else "the callback never ended")
if "destroy" in how:
    dist.destroy_process_group()
if "raise" in how:
    raise SystemExit(0)
"""


# What the documentation shows: three functional collectives, and the end.
_SIX_LINES = """
import os, sys, torch, torch.distributed as dist, torch.distributed._functional_collectives as f
dist.init_process_group("isthmus", init_method="file://" + os.environ["HARNESS_STORE"],
                        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
for _ in range(3): f.all_reduce(torch.ones(10), "sum", dist.group.WORLD) + 1
if "destroy" in sys.argv: dist.destroy_process_group()
"""


def _exits(text: str, how: str) -> None:
    with Programs(text, 2, how) as programs:
        ends = programs.ends()
    assert [code for code, _ in ends] == [0, 0], (how, ends)
    assert all("terminate" not in end and "Traceback" not in end for _, end in ends), ends


@pytest.mark.parametrize(
    "how",
    ["wait", "wait destroy", "wait functional destroy", "wait raise", "wait callback", "callback"],
)
def test_clean_exit(how):
    for _ in range(2):
        _exits(_SCRIPT, how)


@pytest.mark.parametrize("how", ["leave", "destroy"])
def test_clean_exit_of_six_lines(how):
    for _ in range(2):
        _exits(_SIX_LINES, how)


@pytest.mark.long
@pytest.mark.parametrize("how", ["wait", "callback"])
def test_fifty_clean_exits(how):
    """Without destroy, and with the destruction on a completion lane: not one of 50 fails."""
    for _ in range(50):
        _exits(_SCRIPT, how)


@pytest.mark.long
@pytest.mark.parametrize("how", ["leave", "destroy"])
def test_two_hundred_clean_exits_of_six_lines(how):
    """Not one of 200 fails; with Gloo one in six does."""
    for _ in range(200):
        _exits(_SIX_LINES, how)


# Run on the ranks.


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def load_data() -> None:
    """Workers of a DataLoader, forked while the group is in use, come and go without effect."""
    size = dist.get_world_size()
    for _ in range(2):
        loader = torch.utils.data.DataLoader(
            Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork"
        )
        for batch in loader:
            total = batch.sum()
            dist.all_reduce(total)
            assert total.item() == batch.sum().item() * size
    dist.barrier()


def call_in_child() -> str:
    """A call in a forked child raises one sentence; the parent goes on."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = b"no error"
        try:
            dist.all_reduce(torch.ones(2))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".encode()
        os.write(write, text)
        os._exit(0)
    os.close(write)
    text = os.read(read, 1000).decode()
    os.close(read)
    os.waitpid(child, 0)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor[0].item() == dist.get_world_size()
    return text


def exit_in_child() -> int:
    """A forked child that ends like a program, with atexit handlers, disturbs nobody."""
    child = os.fork()
    if child == 0:
        os.execv("/bin/true", ["true"])
    _, first = os.waitpid(child, 0)
    child = os.fork()
    if child == 0:
        import atexit

        atexit._run_exitfuncs()
        os._exit(0)
    _, second = os.waitpid(child, 0)
    dist.barrier()
    return first + second


@pytest.mark.parametrize("size", [2, 4])
def test_data_loader(pool, size):
    pool(size).call(__file__, "load_data")


def test_call_in_a_forked_child(pool):
    for text in pool(2).call(__file__, "call_in_child"):
        assert "forked" in text, text


def test_exit_of_a_forked_child(pool):
    assert pool(2).call(__file__, "exit_in_child") == [0, 0]


def test_ranks_leave_nothing_in_shared_memory():
    before = set(os.listdir("/dev/shm"))
    with Ranks(2) as ranks:
        ranks.call(__file__, "load_data")
        for rank in ranks.ranks:
            rank.kill()
        ranks.broken = True
    left = {name for name in set(os.listdir("/dev/shm")) - before if "isthmus" in name}
    assert not left, left
