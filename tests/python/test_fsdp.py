"""isthmus.fsdp: HYBRID_SHARD in one pipeline trains to what torch's own HSDP trains to.

Method: two replicas of two shards, one replica a node, and placements that do not fit it; the same
seeds with both, micro-batches that stay inside the shard group, reduction in three types, and a
divisor that the program chose.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import isthmus

# Run on the ranks.


def _trained(wrap, factor: float | None) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(48, 48) for _ in range(3)])
    parts = [*model, model]
    for part in parts:
        assert wrap(part) is part
        if factor is not None:
            part.set_gradient_divide_factor(factor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        for micro in range(3):
            model.set_requires_all_reduce(micro == 2)
            draw = torch.Generator().manual_seed(100 * step + 10 * micro + dist.get_rank())
            model(torch.randn(4, 48, generator=draw)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.full_tensor().flatten() for p in model.parameters()]).detach()


def hybrid_equals_native(dtype: str, factor: float | None) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from isthmus.fsdp import hybrid_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, dtype))
    native = _trained(lambda part: fully_shard(part, mesh=mesh, mp_policy=policy), factor)
    fused = _trained(lambda part: hybrid_shard(part, mesh, mp_policy=policy), factor)
    limit = {"float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-3}[dtype]
    assert (fused - native).abs().max() <= limit * native.abs().max()
    return fused.numpy().tobytes().hex()


def only_the_last_micro_batch_crosses() -> None:
    """While gradients are only collected, nothing is reduced over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    from isthmus.fsdp import hybrid_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = hybrid_shard(nn.Linear(64, 64), mesh)
    reduced = []
    fused = isthmus.fsdp.reduce_shards
    isthmus.fsdp.reduce_shards = lambda *call, **named: (
        reduced.append(named["priority"]),
        fused(*call, **named),
    )
    model.set_requires_all_reduce(False)
    for _ in range(2):
        model(torch.ones(2, 64)).sum().backward()
    before = len(reduced)
    model.set_requires_all_reduce(True)
    model(torch.ones(2, 64)).sum().backward()
    isthmus.fsdp.reduce_shards = fused
    assert (before, reduced) == (0, ["background"])
    for grad in (model.weight.grad, model.bias.grad):
        whole = grad.full_tensor()
        assert torch.equal(whole, torch.full_like(whole, 6.0)), "three micro-batches of two rows"


def what_does_not_fit() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    from isthmus.fsdp import hybrid_shard, reduce_shards

    with pytest.raises(ValueError, match="two dimensions"):
        hybrid_shard(nn.Linear(4, 4), init_device_mesh("cpu", (4,)))
    with pytest.raises(ValueError, match="two or more ranks a shard group"):
        hybrid_shard(nn.Linear(4, 4), init_device_mesh("cpu", (4, 1)))
    with pytest.raises(ValueError, match="3 shards, expected a number that divides the 4 ranks"):
        reduce_shards(torch.empty(4), torch.empty(12), 3)
    with pytest.raises(ValueError, match="reduce_shards"):
        reduce_shards(torch.empty(4), torch.empty(12), 2)
    out = torch.empty(4)
    reduce_shards(out, torch.ones(8), 2)
    assert torch.equal(out, torch.full((4,), 4.0)), "the group goes on"


@pytest.mark.parametrize(
    ("nodes", "dtype", "factor"),
    [
        ("aabb", "float32", None),
        ("aabb", "bfloat16", None),
        ("aabb", "float16", None),
        ("aabb", "float32", 2.0),  # the ranks of a shard group
        ("aabb", "float32", 8.0),
        ("", "float32", None),
        ("abcd", "float32", None),
        ("aaab", "float32", None),
    ],
)
def test_hybrid_shard_equals_native(pool, nodes, dtype, factor):
    first, *others = pool(4, nodes).call(__file__, "hybrid_equals_native", dtype, factor)
    assert all(other == first for other in others)


def test_earlier_micro_batches_stay_inside(pool):
    pool(4, "aabb").call(__file__, "only_the_last_micro_batch_crosses")


def test_what_does_not_fit_is_refused(pool):
    pool(4, "aabb").call(__file__, "what_does_not_fit")
