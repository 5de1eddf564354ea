"""What parallel engines call beside their strategies: DTensor, joined inputs, averaged models,
compiled programs, profiles. (The strategies themselves are in test_equiv.py.)

Method: small whole numbers, so that every result is compared with an exact one.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# Run on the ranks. What is imported late takes seconds, and not every pool needs it.


def redistribute() -> None:
    """From every placement of a DTensor to every other one, with lengths that do not divide."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import (
        DTensor,
        Partial,
        Replicate,
        Shard,
        distribute_tensor,
    )

    size = dist.get_world_size()
    shapes = [(size,)] + ([(2, 2)] if size == 4 else [])
    whole = torch.arange(7 * 5, dtype=torch.float32).view(7, 5)
    for shape in shapes:
        mesh = init_device_mesh("cpu", shape)
        choices = list(
            itertools.product((Replicate(), Shard(0), Shard(1)), repeat=len(shape))
        )
        pairs = list(itertools.product(choices, repeat=2))
        # Of the 81 of a square every fourth: each takes tens of milliseconds.
        for before, after in pairs if len(shape) == 1 else pairs[::4]:
            moved = distribute_tensor(whole, mesh, before).redistribute(mesh, after)
            assert torch.equal(moved.full_tensor(), whole), (before, after)
        for after in choices:
            sums = DTensor.from_local(whole, mesh, [Partial()] * len(shape))
            assert torch.equal(sums.redistribute(mesh, after).full_tensor(), whole * size), after


def joined() -> None:
    """Ranks have more batches the higher they are: the early ones stand in for themselves."""
    from torch.distributed.algorithms.join import Join

    rank, size = dist.get_rank(), dist.get_world_size()
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    model = DistributedDataParallel(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with Join([model]):
        for _ in range(2 + rank):
            model(torch.full((1, 1), float(rank + 1))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    wanted = 1.0
    for step in range(1 + size):
        wanted -= 0.5 * sum(r + 1 for r in range(size) if 2 + r > step) / size
    assert layer.weight.item() == wanted, (layer.weight, wanted)


def averaged() -> None:
    """Local SGD: models drift apart and are averaged, now and then, within pairs and over all."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
        PostLocalSGDState,
        post_localSGD_hook,
    )
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
        HierarchicalModelAverager,
    )
    from torch.distributed.optim import PostLocalSGDOptimizer

    rank, size = dist.get_rank(), dist.get_world_size()
    mean = sum(range(size)) / size

    def drifted() -> nn.Parameter:
        """Only what has a gradient is averaged."""
        own = nn.Parameter(torch.full((3,), float(rank)))
        own.grad = torch.zeros(3)
        return own

    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    for step in range(4):
        own = drifted()
        averager.average_parameters([own])
        assert own.tolist() == [mean if step % 2 == 1 else rank] * 3, step
    if size == 4:
        averager = HierarchicalModelAverager(OrderedDict([(2, 2), (4, 4)]), warmup_steps=0)
        wanted = [mean, rank, rank // 2 * 2 + 0.5, rank]
        for step in range(4):
            own = drifted()
            averager.average_parameters([own])
            assert own.tolist() == [wanted[step]] * 3, (step, own)
    alone = [dist.new_group([r]) for r in range(size)][rank]
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    model = DistributedDataParallel(layer)
    state = PostLocalSGDState(None, alone, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), PeriodicModelAverager(2, warmup_steps=2)
    )
    seen = []
    for _ in range(5):
        model(torch.full((1, 1), float(rank + 1))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(layer.weight.item())
    # Two common steps, then every rank its own, averaged after the first and the third of them.
    common, own = 0.5 * (mean + 1), 0.5 * (rank + 1)
    starts = [1 - common, 1 - 2 * common, 1 - 3 * common, 1 - 3 * common - own, 1 - 5 * common]
    assert seen == starts, (seen, starts)


def compiled(backend: str) -> None:
    """Collectives inside a compiled function, without a break in the graph; a compiled DDP."""
    import torch.distributed._functional_collectives as functions

    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        dist.all_reduce(y)
        everyone = functions.all_gather_tensor(x + 1, 0, group)
        part = functions.reduce_scatter_tensor(everyone * 1.0, "sum", 0, group)
        turned = functions.all_to_all_single(y + x, None, None, group)
        return y - 1, part + turned

    x = torch.full((4 * size, 3), float(rank))
    wanted = program(x)
    for got, right in zip(torch.compile(program, fullgraph=True, backend=backend)(x), wanted):
        assert torch.equal(got, right)
    assert wanted[0][0, 0].item() == size * (size - 1) - 1

    def trained(wrap) -> list[torch.Tensor]:
        torch.manual_seed(3)
        layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        model = wrap(DistributedDataParallel(layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            model(torch.full((2, 8), rank + step + 1.0)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(layers.parameters())

    plain = trained(lambda model: model)
    for got, right in zip(trained(lambda model: torch.compile(model, backend=backend)), plain):
        assert torch.allclose(got, right, rtol=1e-4, atol=1e-6)
        same = [torch.empty_like(got) for _ in range(size)]
        dist.all_gather(same, got.detach())
        assert all(torch.equal(one, same[0]) for one in same)


def profiled() -> list[str]:
    """The names in a trace of torch.profiler, of calls that wait and calls that do not."""
    size = dist.get_world_size()
    one, whole = torch.ones(4), torch.ones(4 * size)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(one)
        dist.broadcast(one, 0, async_op=True).wait()
        dist.all_gather_single(whole, one)
        dist.reduce_scatter_single(one, whole, async_op=True).wait()
        dist.barrier()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    return sorted({event["name"] for event in events if "isthmus:" in event.get("name", "")})


@pytest.mark.parametrize(
    ("function", "size"),
    [("redistribute", 4), ("joined", 2), ("joined", 4), ("averaged", 2), ("averaged", 4)],
)
def test_engines(pool, size, function):
    pool(size).call(__file__, function)


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)]
)
def test_compiled(pool, backend):
    pool(2).call(__file__, "compiled", backend, limit_s=400)


def test_every_call_has_its_name_in_a_profile(pool):
    for names in pool(2).call(__file__, "profiled"):
        for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"):
            assert f"isthmus:{name}" in names, names
