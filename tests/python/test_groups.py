"""Groups: made by their members, over a used store again and again, and with their own limits."""

from __future__ import annotations

import copy
import os
import random
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import isthmus
from harness import Ranks, held, leaks, run_script

_OPS_FILE = str(Path(__file__).with_name("test_ops.py"))

# Run on the ranks.


def subgroups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    groups = [dist.new_group(half) for half in halves]
    mine = halves[rank >= size // 2]
    tensor = torch.full((100,), float(rank))
    dist.all_reduce(tensor, group=groups[rank >= size // 2])
    assert tensor[0].item() == sum(mine)
    dist.broadcast(tensor, mine[-1], group=groups[rank >= size // 2])
    for group in groups:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    dist.barrier()


def local_groups() -> None:
    """use_local_synchronization: only the members call new_group, and the others do not notice."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(3):
        if rank != 0:
            group = dist.new_group(list(range(1, size)), use_local_synchronization=True)
            tensor = torch.full((10,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert tensor[0].item() == sum(range(1, size))
            dist.destroy_process_group(group)
    dist.barrier()


def mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    rank = dist.get_rank()
    grid = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("a", "b"))
    for name in ("a", "b"):
        ranks = dist.get_process_group_ranks(grid.get_group(name))
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=grid.get_group(name))
        assert tensor.item() == sum(ranks)


def options() -> None:
    group = dist.new_group(timeout=timedelta(seconds=17))
    backend = group._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(seconds=17)
    assert copy.deepcopy(backend.options)._timeout == timedelta(seconds=17)
    assert copy.copy(backend.options)._timeout == timedelta(seconds=17)
    backend._set_default_timeout(timedelta(seconds=5))
    assert backend.options._timeout == timedelta(seconds=5)
    dist.destroy_process_group(group)


def priorities() -> None:
    """They need not agree between ranks, stay with the group, and change no result."""
    rank, size = dist.get_rank(), dist.get_world_size()
    name = ("background", "urgent")[rank % 2]
    group = dist.new_group(pg_options=isthmus.Options(timedelta(seconds=17), priority=name))
    options = group._get_backend(torch.device("cpu")).options
    assert (options.priority, options._timeout) == (name, timedelta(seconds=17))
    assert copy.deepcopy(options).priority == copy.copy(options).priority == name
    assert options.is_high_priority_stream == (name == "urgent")
    works = []
    tensors = [torch.full((3_000_000,), float(rank + k)) for k in range(4)]
    for k, tensor in enumerate(tensors):
        works.append(dist.all_reduce(tensor, group=(group, None)[k % 2], async_op=True))
    for work in works:
        work.wait()
    for k, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full_like(tensor, float(sum(range(size)) + k * size)))
    message = torch.full((1_000_000,), float(rank))
    if rank < 2:
        send = dist.isend(message, 1 - rank, group=group)
        other = torch.empty_like(message)
        dist.recv(other, 1 - rank, group=group)
        send.wait()
        assert torch.equal(other, torch.full_like(other, 1.0 - rank))
    part = group.split_group(list(range(size)), group_name="a part of it")
    assert part._get_backend(torch.device("cpu")).options.priority == name
    assert dist.group.WORLD._get_backend(torch.device("cpu")).options.priority == "normal"
    high = isthmus.Options()
    high.is_high_priority_stream = True
    assert high.priority == "urgent"
    with pytest.raises(ValueError, match="urgent, normal and background, got loud"):
        isthmus.Options(priority="loud")
    dist.destroy_process_group(group)


def again(rounds: int) -> None:
    """Initialises and destroys over and over, on one store, and nothing is left of it."""
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    store = dist.FileStore(os.environ["HARNESS_STORE"], size)
    marks = []
    for turn in range(rounds):
        dist.init_process_group(
            "isthmus", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
        )
        tensor = torch.full((1000,), float(turn + rank))
        dist.all_reduce(tensor)
        assert tensor[0].item() == sum(turn + other for other in range(size))
        group = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(tensor, group=group)
        dist.destroy_process_group()
        marks.append(held())
    assert not leaks(marks[min(10, rounds // 2)], marks[-1]), marks
    assert marks[-1]["files"] <= marks[2]["files"] + 1, marks


def late(call_limit: bool) -> float:
    """Rank 0 stays away: the others get an error that names it, at the limit and not later."""
    limit = timedelta(seconds=1)
    group = dist.new_group() if call_limit else dist.new_group(timeout=limit)
    if dist.get_rank() == 0:
        return 0.0
    begin = time.monotonic()
    try:
        if call_limit:
            options = dist.BarrierOptions()
            options.timeout = limit
            options.asyncOp = False
            group.barrier(options)
        else:
            dist.all_reduce(torch.ones(2), group=group)
    except dist.DistBackendError as error:
        took = time.monotonic() - begin
        assert "rank 0" in str(error), str(error)
        assert 0.9 < took < 4, took
        return took
    raise AssertionError("it completed without rank 0")


def threads_with_tags(rounds: int) -> None:
    """Two threads share a group; which of them calls first differs from rank to rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    wrong: list[str] = []
    issued = threading.Event()

    def loop(tag: int) -> None:
        try:
            if tag != 1 + rank % 2:
                issued.wait(30)
            with isthmus.tag(tag):
                for i in range(rounds):
                    for count in (3, 50_000):
                        got = torch.full((count,), float(rank + 100 * tag + i))
                        work = dist.all_reduce(got, async_op=i % 2 == 0)
                        issued.set()
                        if work is not None:
                            work.wait()
                        wanted = sum(range(size)) + size * (100.0 * tag + i)
                        if not torch.equal(got, torch.full((count,), wanted)):
                            wrong.append(f"tag {tag}, round {i}: {got[0]}, want {wanted}")
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=loop, args=(tag,)) for tag in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong, wrong[:3]
    with isthmus.tag(1):
        with isthmus.tag(0):
            dist.barrier()
        dist.barrier()
    try:
        isthmus.tag(-1)
        raise AssertionError("a negative tag was accepted")
    except ValueError as error:
        assert "got -1" in str(error)


def groups_at_once(rounds: int) -> None:
    """Eight groups, of all ranks and of pairs; on each a thread of its own communicates."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [[first, first + 1] for first in range(0, size, 2)]
    members = [list(range(size))] * 4 + [pairs[k % len(pairs)] for k in range(4)]
    groups = [dist.new_group(ranks) for ranks in members]
    wrong: list[str] = []

    def traffic(k: int) -> None:
        group, ranks = groups[k], members[k]
        draw = random.Random(8 * rank + k)
        place = ranks.index(rank)
        for i in range(rounds):
            if draw.random() < 0.2:
                time.sleep(draw.random() * 0.002)
            count = (3, 5000, 200_000)[i % 3]
            own = torch.full((count,), float(rank + k + i))
            work = dist.all_reduce(total := own.clone(), group=group, async_op=True)
            everyone = torch.empty(len(ranks) * count)
            dist.all_gather_single(everyone, own, group=group)
            work.wait()
            wanted = [float(r + k + i) for r in ranks]
            assert torch.equal(total, torch.full((count,), sum(wanted))), (k, i)
            assert everyone[::count].tolist() == wanted, (k, i)
            left, right = ranks[place - 1], ranks[(place + 1) % len(ranks)]
            sent = dist.isend(own, right, group=group)
            dist.recv(got := torch.empty(count), left, group=group)
            sent.wait()
            assert got[-1].item() == left + k + i, (k, i)

    def thread(k: int) -> None:
        try:
            traffic(k)
        except BaseException as error:
            wrong.append(repr(error))

    threads = [
        threading.Thread(target=thread, args=(k,)) for k in range(8) if rank in members[k]
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert not wrong and not any(one.is_alive() for one in threads), wrong[:3]


def monitored() -> str:
    """Ranks 1 and 2 of four stay away from the second barrier."""
    group = dist.new_group()
    isthmus.monitored_barrier(group, timedelta(seconds=30))
    if dist.get_rank() in (1, 2):
        return ""
    try:
        isthmus.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks=True)
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("it completed without ranks 1 and 2")


def split() -> None:
    """ProcessGroup.split_group: groups of all ranks, of some, and of a part of a part."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = dist.group.WORLD.split_group(list(range(size)), group_name="all of them")
    whole.allreduce([tensor := torch.full((3,), float(rank))]).wait()
    assert tensor[0].item() == size * (size - 1) / 2
    first = dist.group.WORLD.split_group([0, 1], group_name="the first two")
    assert (first is None) == (rank > 1)
    if first is not None:
        assert (first.rank(), first.size()) == (rank, 2)
        first.allreduce([tensor := torch.full((3,), rank + 1.0)]).wait()
        assert tensor[0].item() == 3.0
        alone = first.split_group([rank], group_name=f"rank {rank} alone")
        alone.allreduce([tensor := torch.full((3,), 4.0)]).wait()
        assert tensor[0].item() == 4.0
    dist.barrier()


def wait_limit() -> None:
    """wait(limit) raises at the limit and leaves the operation running."""
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["go"])
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 1:
        try:
            work.wait(timedelta(milliseconds=100))
            raise AssertionError("it completed without rank 0")
        except RuntimeError:
            assert not work.is_completed()
        store.set("go", "1")
    work.wait()
    assert tensor[0].item() == dist.get_world_size()


@pytest.mark.parametrize("nodes", ["", "aabb"])
def test_priorities(pool, nodes):
    pool(4, nodes).call(__file__, "priorities")


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("function", ["subgroups", "local_groups", "options", "split"])
def test_groups(pool, size, function):
    pool(size).call(__file__, function)


@pytest.mark.parametrize("size", [2, 4])
def test_threads_share_a_group_by_tags(pool, size):
    pool(size).call(__file__, "threads_with_tags", 20)


@pytest.mark.parametrize(("size", "nodes"), [(2, ""), (4, ""), (4, "aabb")])
def test_eight_groups_at_once(pool, size, nodes):
    pool(size, nodes).call(__file__, "groups_at_once", 12)


@pytest.mark.parametrize("nodes", ["aaaa", "aabb"])
def test_monitored_barrier_names_all_who_are_late(nodes):
    with Ranks(4, nodes=nodes) as ranks:
        texts = ranks.call(__file__, "monitored")
    for rank in (0, 3):
        assert "ranks 1 and 2" in texts[rank] or "ranks 2 and 1" in texts[rank], texts


def test_mesh(pool):
    pool(4).call(__file__, "mesh")


def test_wait_limit(pool):
    pool(2).call(__file__, "wait_limit")


@pytest.mark.long
@pytest.mark.parametrize("nodes", ["aaaa", "aabb"])
def test_again_and_again_on_a_used_store(nodes):
    with Ranks(4, join=False, nodes=nodes) as ranks:
        ranks.call(__file__, "again", 200, limit_s=300)


@pytest.mark.parametrize("call_limit", [False, True])
def test_time_limits(call_limit):
    with Ranks(2) as ranks:
        ranks.call(__file__, "late", call_limit)


@pytest.mark.parametrize("backend", ["cpu:isthmus", "cpu:isthmus,cuda:isthmus", "isthmus"])
def test_names(backend):
    """The backend is known without an import, also by device; one rank needs no peer."""
    text = f"""
import torch, torch.distributed as dist
dist.init_process_group({backend!r}, store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor[0].item() == 1
dist.destroy_process_group()
"""
    done = run_script(text)
    assert done.returncode == 0, done.stderr


def test_group_beside_another_backend():
    """torch's default group may be on another backend: a group on isthmus then stands alone."""
    text = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group([0], backend="isthmus")
dist.all_reduce(torch.ones(3), group=group)
dist.destroy_process_group()
"""
    done = run_script(text)
    assert done.returncode == 0, done.stderr


def test_detail_debug_mode():
    """Every kind of call works where torch compares the calls of all ranks first."""
    with Ranks(2, TORCH_DISTRIBUTED_DEBUG="DETAIL") as ranks:
        for function in ("coalesced", "functional", "rooted", "all_to_all", "point_to_point",
                         "sparse", "objects", "barriers"):
            ranks.call(_OPS_FILE, function)
        ranks.call(__file__, "subgroups")
