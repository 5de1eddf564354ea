"""isthmus.fsdp: HYBRID_SHARD in one pipeline trains to what torch's own HSDP trains to.

Method: two replicas of two shards, one replica a node, and placements that do not fit it; the same
seeds with both, micro-batches that stay inside the shard group, reduction in three types, and a
divisor that the program chose. Which reductions go on while backward does is seen in how they are
called; that all have ended with it, in the gradients.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import isthmus
from harness import Programs

# Rank 3 ends in the middle of its second backward.
_GONE = """
import os, signal, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from isthmus.fsdp import hybrid_shard
rank = int(os.environ["RANK"])
os.environ["ISTHMUS_NODE_ID"] = "aabb"[rank]
dist.init_process_group("isthmus", init_method="file://" + os.environ["HARNESS_STORE"],
                        rank=rank, world_size=4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
model = torch.nn.Sequential(*[hybrid_shard(torch.nn.Linear(256, 256), mesh) for _ in range(3)])
model(torch.ones(2, 256)).sum().backward()
if rank == 3:
    model[1].register_full_backward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
loss = model(torch.ones(2, 256, requires_grad=True)).sum()
print("in backward", flush=True)
loss.backward()
print("after it", flush=True)
"""

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


def _watched():
    """(priority, asynchronous) of every reduction from now on, and what to put back."""
    reduced, fused = [], isthmus.fsdp.reduce_shards

    def reduce(*call, priority):
        reduced.append((priority, call[5]))
        return fused(*call, priority=priority)

    isthmus.fsdp.reduce_shards = reduce
    return reduced, fused


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
    reduced, fused = _watched()
    model.set_requires_all_reduce(False)
    for _ in range(2):
        model(torch.ones(2, 64)).sum().backward()
    before = len(reduced)
    model.set_requires_all_reduce(True)
    model(torch.ones(2, 64)).sum().backward()
    isthmus.fsdp.reduce_shards = fused
    assert (before, reduced) == (0, [("background", True)])
    for grad in (model.weight.grad, model.bias.grad):
        whole = grad.full_tensor()
        assert torch.equal(whole, torch.full_like(whole, 6.0)), "three micro-batches of two rows"


class _Twice(nn.Module):
    """A module that runs twice in a step, so that its gradients are reduced twice."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.first, self.shared = wrap(nn.Linear(64, 64)), wrap(nn.Linear(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared(self.shared(self.first(x)).relu())


def _gradients(wrap, prepare=lambda model: None, passes: int = 1) -> torch.Tensor:
    torch.manual_seed(0)
    model = wrap(_Twice(wrap))
    prepare(model)
    for index in range(passes):
        draw = torch.Generator().manual_seed(10 * index + dist.get_rank())
        model(torch.randn(8, 64, generator=draw)).square().sum().backward()
    return torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])


def _meshed(**named):
    """How to wrap natively, and by hybrid_shard."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from isthmus.fsdp import hybrid_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return (
        lambda part: fully_shard(part, mesh=mesh),
        lambda part: hybrid_shard(part, mesh, **named),
    )


def reductions_end_with_backward(in_flight: int, passes: int) -> None:
    """A module that runs twice, and gradients that several backward passes add to."""
    native, hybrid = _meshed(in_flight=in_flight)
    expected = _gradients(native, passes=passes)
    reduced, fused = _watched()
    found = _gradients(hybrid, passes=passes)
    isthmus.fsdp.reduce_shards = fused
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert set(reduced) == {("background", in_flight > 0)}
    assert len(reduced) >= 2 * passes


def an_optimizer_in_backward() -> None:
    """What reads a gradient as soon as FSDP2 has it reads the whole sum."""
    seen: dict[str, torch.Tensor] = {}

    def prepare(model: nn.Module) -> None:
        for name, parameter in model.first.named_parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda one, name=name: seen.update({name: one.grad.full_tensor().clone()})
            )

    _, hybrid = _meshed()
    reduced, fused = _watched()
    everything = _gradients(hybrid, prepare)
    isthmus.fsdp.reduce_shards = fused
    assert ("background", False) in reduced, "of the module with hooks"
    assert ("background", True) in reduced, "of the other"
    assert torch.equal(torch.cat([seen["weight"].flatten(), seen["bias"]]), everything[: 64 * 65])


def what_does_not_fit() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    from isthmus.fsdp import hybrid_shard, reduce_shards

    with pytest.raises(ValueError, match="two dimensions"):
        hybrid_shard(nn.Linear(4, 4), init_device_mesh("cpu", (4,)))
    with pytest.raises(ValueError, match="two or more ranks a shard group"):
        hybrid_shard(nn.Linear(4, 4), init_device_mesh("cpu", (4, 1)))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    with pytest.raises(ValueError, match="in_flight is -1"):
        hybrid_shard(nn.Linear(4, 4), mesh, in_flight=-1)
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


@pytest.mark.parametrize(("in_flight", "passes"), [(0, 2), (1, 1), (2, 1), (2, 3), (100, 2)])
def test_reductions_end_with_backward(pool, in_flight, passes):
    pool(4, "aabb").call(__file__, "reductions_end_with_backward", in_flight, passes)


def test_an_optimizer_in_backward_sees_sums(pool):
    pool(4, "aabb").call(__file__, "an_optimizer_in_backward")


def test_a_rank_that_is_gone_ends_backward():
    """The reduction fails where it is waited for: the survivors' backward says who is gone."""
    with Programs(_GONE, 4) as programs:
        ends = programs.ends(120)
    for rank, (code, output) in enumerate(ends[:3]):
        assert code == 1 and "rank 3 is gone" in output, (rank, code, output)
        assert "in backward" in output, output


def test_what_does_not_fit_is_refused(pool):
    pool(4, "aabb").call(__file__, "what_does_not_fit")
