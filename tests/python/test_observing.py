"""Groups of operations, completion hooks, durations and memory from the group."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType, WorkInfo
from torch.distributed.distributed_c10d import _coalescing_manager

from harness import Ranks
from worker import join

import isthmus

_CPU = torch.device("cpu")


def _backend(group: dist.ProcessGroup | None = None) -> dist.Backend:
    return (group or dist.group.WORLD)._get_backend(_CPU)


# Run on the ranks.


def exchange_in_one_work(rounds: int) -> None:
    """Everyone to everyone, posted in an order of its own on each rank; one work for all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    peers = [p for p in range(size) if p != rank]
    for n in range(rounds):
        received = {p: torch.zeros(100_000) for p in peers}
        sends = [
            dist.P2POp(dist.isend, torch.full((100_000,), 100.0 * rank + p + n), p) for p in peers
        ]
        receives = [dist.P2POp(dist.irecv, received[p], p) for p in reversed(peers)]
        works = dist.batch_isend_irecv(receives + sends if rank % 2 else sends + receives)
        assert len(works) == 1, works
        works[0].wait()
        assert works[0].is_completed() and works[0].is_success()
        for p in peers:
            assert bool((received[p] == 100.0 * p + rank + n).all())
    assert len(works[0].result()) == 2 * len(peers)


def mixed_group(asynchronous: bool) -> None:
    """Collectives of several kinds, an input with gaps among them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gappy = torch.arange(8.0)[::2]
    word = torch.full((3,), float(rank))
    blocks = [torch.zeros(2) for _ in range(size)]
    with _coalescing_manager(device=_CPU, async_ops=asynchronous) as manager:
        dist.broadcast(word, src=1, async_op=asynchronous)
        _backend().allreduce([gappy], _sum(asynchronous))
        dist.all_gather(blocks, torch.full((2,), float(rank)), async_op=asynchronous)
    if asynchronous:
        future = manager.works[0].get_future()
        manager.wait()
        assert len(future.wait()) == 2 + size
    assert word.tolist() == [1.0] * 3
    assert gappy.tolist() == [size * v for v in (0.0, 2.0, 4.0, 6.0)]
    assert [b.tolist() for b in blocks] == [[float(r)] * 2 for r in range(size)]


def _sum(asynchronous: bool) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.asyncOp = asynchronous
    return options


def broken_group() -> str:
    """An exception leaves a group in the middle; later calls are as if it had never been."""
    tensor = torch.ones(4)
    with pytest.raises(RuntimeError, match="of the caller"):
        with _coalescing_manager(device=_CPU, async_ops=True):
            dist.broadcast(torch.zeros(4), src=0, async_op=True)
            raise RuntimeError("of the caller")
    dist.distributed_c10d._world.pg_coalesce_state.clear()
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(dist.get_world_size())] * 4
    exchange_in_one_work(1)
    with pytest.raises(ValueError) as error:
        _backend()._end_coalescing()
    return str(error.value)


def empty_group() -> None:
    with _coalescing_manager(device=_CPU, async_ops=True) as manager:
        pass
    manager.wait()


def threads_gather_apart() -> None:
    """A group gathers what its own thread issues."""
    group = dist.new_group()
    late = dist.new_group()
    counts = []

    def other() -> None:
        for _ in range(50):
            dist.all_reduce(torch.ones(10), group=late, async_op=True).wait()

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(50):
        with _coalescing_manager(group, _CPU, async_ops=True) as manager:
            dist.broadcast(torch.ones(10), src=0, group=group, async_op=True)
            dist.broadcast(torch.ones(10), src=1, group=group, async_op=True)
        manager.wait()
        counts.append(len(manager.works[0].result()))
    thread.join()
    assert counts == [2] * 50


def hook_sees_everything() -> list[str]:
    """Synchronous, asynchronous and failed operations; the order of each kind's numbers."""
    group = dist.new_group()
    seen = []

    def hook(info: WorkInfo) -> None:
        seen.append(info)
        if len(seen) == 2:
            raise ValueError("a hook's own fault ends nothing")

    group._register_on_completion_hook(hook)
    peer = 1 - dist.get_rank()
    for _ in range(3):
        dist.all_reduce(torch.ones(5), group=group)
        dist.all_gather_into_tensor(torch.ones(10), torch.ones(5), group=group)
        dist.all_reduce(torch.ones(5), group=group, async_op=True).wait()
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.ones(3), peer, group),
                dist.P2POp(dist.irecv, torch.ones(3), peer, group),
            ]
        ):
            work.wait()
    with pytest.raises(RuntimeError):  # sizes differ between the ranks
        dist.all_reduce(torch.ones(5 + dist.get_rank()), group=group)
    group._wait_for_pending_works()
    with pytest.raises(ValueError, match="hook already"):
        group._register_on_completion_hook(hook)
    collectives = sorted(
        (i for i in seen if i.op_type not in (OpType.SEND, OpType.RECV)),
        key=lambda i: i.seq,
    )
    assert [i.seq for i in collectives] == list(range(1, 11)), [i.seq for i in collectives]
    for info in seen:
        assert info.time_finished >= info.time_started
    dist.destroy_process_group(group)
    return sorted(str(i.op_type).split(".")[-1] for i in seen)


def durations() -> None:
    group = dist.new_group()
    backend = _backend(group)
    untimed = dist.all_reduce(torch.ones(5), group=group, async_op=True)
    untimed.wait()
    with pytest.raises(NotImplementedError, match="enable_collectives_timing"):
        untimed._get_duration()
    backend._enable_collectives_timing() if hasattr(
        backend, "_enable_collectives_timing"
    ) else group._enable_collectives_timing()
    dist.barrier(group)
    if dist.get_rank() == 1:
        time.sleep(0.2)
    work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
    work.wait()
    if dist.get_rank() == 0:
        assert 100 < work._get_duration() < 60_000, work._get_duration()
    else:
        assert 0 <= work._get_duration() < 60_000


def memory_of_the_group() -> None:
    backend = _backend()
    assert backend.supports_tensor_alloc(_CPU)
    rank, size = dist.get_rank(), dist.get_world_size()
    places = set()
    for dtype in (torch.float32, torch.bfloat16):
        for _ in range(20):
            out = backend.allocate_tensor(1_000_003 * size, dtype=dtype, device=_CPU)
            assert out.shape == (1_000_003 * size,) and out.dtype == dtype
            places.add(out.data_ptr())
            dist.all_gather_into_tensor(out, torch.full((1_000_003,), float(rank), dtype=dtype))
            rows = out.view(size, -1)
            assert all(bool((rows[r] == r).all()) for r in range(size))
            view = out[5:7]
            del out, rows
            assert view[0] == 0
            del view
    assert len(places) == 2, "each length is allocated once and used again"
    assert backend.allocate_tensor(0, dtype=torch.int8, device=_CPU).numel() == 0
    with pytest.raises(ValueError, match="0 or more"):
        backend.allocate_tensor(-1, dtype=torch.int8, device=_CPU)
    with pytest.raises(RuntimeError, match="cannot map"):
        backend.allocate_tensor(1 << 55, dtype=torch.int8, device=_CPU)


def memory_read_in_place() -> None:
    """isthmus.empty: views, both kinds of buffers in one operation, a fork, other groups."""
    import os

    rank, size = dist.get_rank(), dist.get_world_size()
    matrix = isthmus.empty(300, 400)
    assert matrix.shape == (300, 400) and matrix.dtype == torch.float32
    pairs = dist.new_group([0, 1])
    for part in (matrix, matrix[10:200], matrix.view(-1)[17:90_001]):
        part.fill_(rank + 1)
        dist.all_reduce(part)
        assert bool((part == size * (size + 1) / 2).all())
        if rank < 2:
            part.fill_(rank + 1)
            dist.all_reduce(part, group=pairs)
            assert bool((part == 3).all())
    # Some ranks' buffers are of the group, some are not.
    mixed = isthmus.empty([50_000]) if rank == 0 else torch.empty(50_000)
    mixed.fill_(rank + 1)
    dist.all_reduce(mixed)
    assert bool((mixed == size * (size + 1) / 2).all())
    child = os.fork()
    if child == 0:
        del matrix, part, mixed
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(ValueError, match="takes groups of isthmus"):
        isthmus.empty(3, group=dist.new_group(backend="gloo"))


def buckets_in_memory_of_the_group() -> str:
    from torch.nn.parallel import DistributedDataParallel

    results = []
    for from_group in (False, True):
        torch.manual_seed(3)
        layers = [torch.nn.Linear(96, 96) for _ in range(4)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.1)
        if from_group:
            assert isthmus.use_group_memory(model) is model
        seen = []

        def look(state, bucket, seen=seen):
            seen.append(_backend().mapped(bucket.buffer()))
            work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, look)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            seen.clear()
            data = torch.randn(8, 96, generator=torch.Generator().manual_seed(step))
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert seen and all(mapped == from_group for mapped in seen), seen
        assert not _backend().mapped(torch.empty(100_000)), "only torch's buckets lie there"
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        results.append(flat.numpy().tobytes())
    assert results[0] == results[1]
    with pytest.raises(ValueError, match="has no such part"):
        isthmus.use_group_memory(torch.nn.Linear(2, 2))
    return results[0].hex()[:64]


def fsdp2_with_memory_of_the_group() -> str:
    from torch.distributed.fsdp import fully_shard

    results = []
    for from_group in (False, True):
        torch.manual_seed(3)
        model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
        for part in [*model, model]:
            fully_shard(part)
        if from_group:
            isthmus.use_group_memory(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            data = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        full = [p.full_tensor().flatten() for p in model.parameters()]
        results.append(torch.cat(full).detach().numpy().tobytes())
    assert results[0] == results[1]
    return results[0].hex()[:64]


def models_with_memory_of_the_group_unasked() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    seen = []

    def look(state, bucket):
        seen.append(_backend().mapped(bucket.buffer()))
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(
            lambda done: done.value()[0]
        )

    ddp = DistributedDataParallel(torch.nn.Linear(96, 96))
    ddp.register_comm_hook(None, look)
    fsdp2 = fully_shard(torch.nn.Linear(64, 64))
    own = fully_shard(torch.nn.Linear(64, 64))
    gloo = DistributedDataParallel(
        torch.nn.Linear(8, 8), process_group=dist.new_group(backend="gloo")
    )
    copied = DistributedDataParallel(torch.nn.Linear(32, 32), gradient_as_bucket_view=False)
    own.set_allocate_memory_from_process_group_for_comm(True)
    chosen = own._get_fsdp_state()._fsdp_param_group._all_gather_comm
    for model, width in ((ddp, 96), (fsdp2, 64), (own, 64), (gloo, 8), (copied, 32)):
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(4, width)).square().mean().backward()
    assert seen[-1], "not even when the buckets were rebuilt"
    assert _backend().mapped(ddp.module.weight.grad), "gradients lie in the buckets"
    for untouched in (gloo, copied):
        assert not _backend().mapped(untouched.module.weight.grad)
        assert not untouched.gradient_as_bucket_view
    part = fsdp2._get_fsdp_state()._fsdp_param_group
    given = part._all_gather_comm.allocate([100], dtype=torch.float32, device=_CPU)
    assert _backend().mapped(given)
    assert own._get_fsdp_state()._fsdp_param_group._all_gather_comm is chosen
    assert not _backend().mapped(torch.empty(100_000)), "only torch's buffers lie there"


def group_ends(reason: str) -> None:
    """Works of a group fail together."""
    join()
    with _coalescing_manager(device=_CPU, async_ops=True) as manager:
        dist.broadcast(torch.ones(4), src=1, async_op=True)
        dist.irecv(torch.ones(4), src=1)
    dist.group.WORLD.abort()
    with pytest.raises(dist.DistBackendError, match=reason):
        manager.wait()
    assert manager.works[0].exception() is not None


@pytest.mark.parametrize(("size", "nodes"), [(2, ""), (4, "aabb")])
def test_a_batch_of_messages_is_one_work(pool, size, nodes):
    pool(size, nodes).call(__file__, "exchange_in_one_work", 20)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_group_of_collectives(pool, asynchronous):
    pool(4).call(__file__, "mixed_group", asynchronous)


def test_a_group_left_by_an_exception_has_no_effect(pool):
    assert "has not started" in pool(2).call(__file__, "broken_group")[0]


def test_an_empty_group_is_complete(pool):
    pool(2).call(__file__, "empty_group")


def test_threads_gather_for_themselves(pool):
    pool(2).call(__file__, "threads_gather_apart")


def test_a_hook_sees_every_operation(pool):
    ops = pool(2).call(__file__, "hook_sees_everything")
    expected = ["ALLREDUCE"] * 7 + ["RECV"] * 3 + ["SEND"] * 3 + ["_ALLGATHER_BASE"] * 3
    assert ops == [expected, expected]


def test_durations(pool):
    pool(2).call(__file__, "durations")


def test_memory_of_the_group(pool):
    pool(2).call(__file__, "memory_of_the_group")


@pytest.mark.parametrize(("size", "nodes"), [(2, ""), (4, ""), (4, "aabb")])
def test_memory_read_in_place(pool, size, nodes):
    pool(size, nodes=nodes).call(__file__, "memory_read_in_place")


def test_buckets_in_memory_of_the_group(pool):
    first, second = pool(2).call(__file__, "buckets_in_memory_of_the_group")
    assert first == second


def test_models_take_memory_of_the_group_unasked():
    with Ranks(2, ISTHMUS_GROUP_MEMORY="1") as ranks:
        ranks.call(__file__, "models_with_memory_of_the_group_unasked")


def test_fsdp2_takes_memory_of_the_group(pool):
    first, second = pool(2).call(__file__, "fsdp2_with_memory_of_the_group")
    assert first == second
