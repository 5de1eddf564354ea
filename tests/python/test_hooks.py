"""Communication hooks of DDP that wait for collectives inside callbacks: PowerSGD.

Such a hook's collectives come between those of the backward pass in another order on every rank,
and on whatever thread the callback happens to run. Method: 14 buckets of equal shape, so that any
two of their collectives could be taken for one another; ranks are late by random times; the
parameters are compared bit for bit between ranks and with a run without delays.
"""

from __future__ import annotations

import random
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from harness import Ranks

_LAYERS = 14
_WIDTH = 24

# Run on the ranks.


def train(steps: int, late_s: float) -> str:
    """All parameters after the steps, as hexadecimal digits."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    layer_bytes = sum(p.numel() * p.element_size() for p in layers[0].parameters())
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers), bucket_cap_mb=layer_bytes / 2**20
    )
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
    )
    draw = random.Random(rank)
    buckets = set()

    def hook(state, bucket):  # DDP refuses annotations that are strings
        buckets.add(bucket.index())
        if draw.random() < 0.2:
            time.sleep(draw.random() * late_s)
        return powerSGD_hook.powerSGD_hook(state, bucket)

    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, _WIDTH, generator=data)).square().mean().backward()
        optimizer.step()
    assert len(buckets) == _LAYERS, buckets
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(one, flat) for one in everyone)
    return flat.numpy().tobytes().hex()


@pytest.mark.parametrize(("size", "nodes"), [(2, ""), (4, "aabb")])
def test_powersgd_ends_and_is_right(size, nodes):
    with Ranks(size, nodes=nodes) as ranks:
        quick = ranks.call(__file__, "train", 25, 0.0)
        late = ranks.call(__file__, "train", 25, 0.004)
    assert quick[0] == late[0]


@pytest.mark.long
def test_powersgd_of_200_steps():
    with Ranks(4) as ranks:
        ranks.call(__file__, "train", 200, 0.01, limit_s=300)
