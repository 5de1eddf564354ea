"""Work and Future: completion order, callbacks that wait for collectives, dropped works.

Method: functions on a pool of ranks; every call has a time limit, so a hang is a failure.
"""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

# Run on the ranks.


def futures() -> None:
    """is_completed() is true inside a callback; the value is a list of the outputs."""
    size = dist.get_world_size()
    for _ in range(50):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        seen = work.get_future().then(lambda f, work=work: (work.is_completed(), f.value()[0]))
        done, tensor = seen.wait()
        assert done
        assert torch.equal(tensor, torch.full((3,), float(size)))
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success()
    assert torch.equal(work.get_future().wait()[0], torch.full((2,), float(size)))
    outputs = [torch.empty(2) for _ in range(size)]
    work = dist.all_gather(outputs, torch.full((2,), float(dist.get_rank())), async_op=True)
    lists = work.get_future().wait()
    assert len(lists) == 1 and len(lists[0]) == size
    assert [t[0].item() for t in lists[0]] == list(range(size))


def order() -> None:
    """Callbacks of one group run in the order of issue, also of works that are done before they are
    attached; the works can be waited for in any order.
    """
    size = dist.get_world_size()
    seen: list[int] = []
    tensors = [torch.full((1 + 1000 * (i % 3),), float(i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [
        work.get_future().then(lambda _, i=i: seen.append(i)) for i, work in enumerate(works)
    ]
    for work in reversed(works):
        work.wait()
    for future in futures:
        future.wait()
    assert seen == list(range(len(works))), seen
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full_like(tensor, i * size))


def nested() -> None:
    """Eight callbacks that each wait for a collective they issue, and one that nests deeper."""
    size = dist.get_world_size()

    def again(_: object) -> torch.Tensor:
        tensor = torch.ones(9)
        dist.all_reduce(tensor)
        return tensor

    futures = [
        dist.all_reduce(torch.ones(9), async_op=True).get_future().then(again) for _ in range(8)
    ]
    for future in futures:
        assert torch.equal(future.wait(), torch.full((9,), float(size)))

    def deeper(future: torch.futures.Future, left: int) -> int:
        if left == 0:
            return 1
        work = dist.all_reduce(torch.ones(2), async_op=True)
        return 1 + work.get_future().then(lambda f: deeper(f, left - 1)).wait()

    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work.get_future().then(lambda f: deeper(f, 3)).wait() == 4


def between() -> None:
    """Calls inside callbacks meet each other, wherever the group's other calls stand.

    Some find their work done when they attach the callback: it then runs on this thread, and on
    another rank on one of ours.
    """
    rank, size = dist.get_rank(), dist.get_world_size()

    def again(value: float) -> torch.Tensor:
        tensor = torch.full((3,), value)
        dist.all_reduce(tensor)
        return tensor

    for i in range(40):
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(2)]
        if (i + 1) % size == rank:
            works[0].wait()
        inner = [
            work.get_future().then(lambda _, v=v: again(v))
            for work, v in zip(works, (10.0 * i, 10.0 * i + 1), strict=True)
        ]
        dist.all_reduce(outer := torch.full((3,), 5.0))
        assert torch.equal(outer, torch.full((3,), 5.0 * size))
        for future, v in zip(inner, (10.0 * i, 10.0 * i + 1), strict=True):
            assert torch.equal(future.wait(), torch.full((3,), v * size))


def dropped() -> None:
    """A work nobody keeps still completes, in memory that stays valid until then."""
    size = dist.get_world_size()
    for _ in range(20):
        dist.all_reduce(torch.ones(50_000), async_op=True)
    dist.all_reduce(torch.ones(50_000)[::2], async_op=True)
    gc.collect()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((3,), float(size)))


def staged() -> None:
    """The copy back into a strided tensor is part of the work, whoever sees its end first."""
    size = dist.get_world_size()
    for how in range(3):
        base = torch.ones(2000)
        work = dist.all_reduce(base[::2], async_op=True)
        if how == 0:
            work.wait()
        elif how == 1:
            work.get_future().wait()
        else:
            while not work.is_completed():
                time.sleep(0)
        assert torch.equal(base[::2], torch.full((1000,), float(size)))
        assert torch.equal(base[1::2], torch.ones(1000))


def mixed() -> None:
    """Synchronous calls between asynchronous ones keep the order of issue."""
    size = dist.get_world_size()
    tensor = torch.ones(100)
    work = dist.all_reduce(tensor, async_op=True)
    dist.all_reduce(other := torch.ones(5))
    later = dist.all_reduce(third := torch.ones(70_000), async_op=True)
    dist.broadcast(other, 0)
    later.wait()
    work.wait()
    assert tensor[0].item() == third[0].item() == other[0].item() == size


def threads() -> None:
    """Two threads, each on a group of its own, do not disturb each other."""
    groups = [dist.new_group() for _ in range(2)]
    failed: list[BaseException] = []

    def loop(group: dist.ProcessGroup, factor: float) -> None:
        try:
            for i in range(200):
                tensor = torch.full((1 + i * 10,), factor)
                dist.all_reduce(tensor, group=group)
                assert tensor[0].item() == factor * dist.get_world_size()
        except BaseException as error:
            failed.append(error)

    workers = [
        threading.Thread(target=loop, args=(group, float(i + 1)))
        for i, group in enumerate(groups)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed, failed
    for group in groups:
        dist.destroy_process_group(group)


def profiled() -> None:
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()
    assert any("isthmus:all_reduce" in event.key for event in profile.key_averages())


def sequence() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 2
    assert backend.name() == "isthmus" and dist.get_backend() == "isthmus"


def limited() -> None:
    """A wait that runs out says of which operation, and may be repeated."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.zeros(3)
    if rank == 0:
        work = dist.irecv(tensor, 1)
        with pytest.raises(dist.DistBackendError) as error:
            work.wait(timedelta(milliseconds=50))
        for part in ("isthmus:recv in group 'world'", "a wait of 50 ms", "limit of 60000 ms"):
            assert part in str(error.value), error.value
    dist.barrier()
    if rank == 1:
        dist.send(torch.full((3,), float(size)), 0)
    elif rank == 0:
        work.wait()
        assert tensor.tolist() == [float(size)] * 3


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "function",
    [
        "futures",
        "order",
        "nested",
        "between",
        "dropped",
        "staged",
        "mixed",
        "threads",
        "profiled",
        "sequence",
        "limited",
    ],
)
def test_async(pool, size, function):
    pool(size).call(__file__, function)
