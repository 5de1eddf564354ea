"""Ways to train one model on several ranks. Each is a class with step() and parameters()."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from model import LEARNING_RATE, MOMENTUM, SIZE, Block, loss_of, optimizer

_WRAPPERS = re.compile(r"(_fsdp_wrapped_)?module\.")
_BUCKET_MB = {"tiny": 0.25, "base": 4}
# The norm that gradients are cut to: below what they have in any step.
CLIP = 0.5


def full_parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of whole parameters, under the names they have without wrappers."""
    return {
        _WRAPPERS.sub("", name): (p.full_tensor() if hasattr(p, "full_tensor") else p)
        .detach()
        .clone()
        for name, p in module.named_parameters()
    }


class Local:
    """No communication at all: the control, whose loss must come out wrong."""

    replicas = SIZE  # ranks that share the global batch
    whole = True  # every rank ends with every parameter
    layers_least = 0  # of blocks
    clips = False  # the norm of the gradients is cut before the step

    def __init__(self, size_name: str, module: nn.Module) -> None:
        self.size_name = size_name
        self.module = self.wrap(module)
        self.optimizer = self.make_optimizer()

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    def make_optimizer(self) -> torch.optim.Optimizer:
        return optimizer(self.module.parameters())

    def parameters(self) -> dict[str, torch.Tensor]:
        return full_parameters(self.module)

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> float | None:
        """The gradients; the loss, where this rank knows it."""
        loss = loss_of(self.module(inputs), targets)
        loss.backward()
        return loss.item()

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float | None:
        loss = self.backward(inputs, targets)
        if self.clips:
            self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Single(Local):
    """The reference: every rank trains on the whole batch."""

    replicas = 1


class SingleClip(Single):
    """The reference of what clips."""

    clips = True


class Ddp(Local):
    options: dict[str, bool] = {}

    def wrap(self, module: nn.Module) -> nn.Module:
        bucket = _BUCKET_MB[self.size_name]
        return DistributedDataParallel(module, bucket_cap_mb=bucket, **self.options)


class DdpStatic(Ddp):
    options = {"static_graph": True, "gradient_as_bucket_view": True}


class DdpUnused(Ddp):
    options = {"find_unused_parameters": True}


class DdpAccumulate(Ddp):
    """no_sync() over the first half of the local batch."""

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        half = len(inputs) // 2
        with self.module.no_sync():
            first = loss_of(self.module(inputs[:half]), targets[:half]) / 2
            first.backward()
        second = loss_of(self.module(inputs[half:]), targets[half:]) / 2
        second.backward()
        return (first + second).item()


class DdpHalf(Ddp):
    """Gradients travel in 16 bits. torch refuses its own hook on the CPU by name."""

    dtype = torch.bfloat16

    def wrap(self, module: nn.Module) -> nn.Module:
        wrapped = super().wrap(module)

        # No annotations: torch compares them with types, and here they would be text.
        def compress(_, bucket):
            half = bucket.buffer().to(self.dtype).div_(SIZE)
            future = dist.all_reduce(half, async_op=True).get_future()
            return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))

        wrapped.register_comm_hook(None, compress)
        return wrapped


class DdpFloat16(DdpHalf):
    dtype = torch.float16


class DdpPowerSgd(Ddp):
    """Waits for collectives inside callbacks."""

    def wrap(self, module: nn.Module) -> nn.Module:
        wrapped = super().wrap(module)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=8, start_powerSGD_iter=2
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return wrapped


class Zero1(Ddp):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(
            self.module.parameters(),
            torch.optim.SGD,
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
            foreach=False,
        )


class Fsdp2(Local):
    mesh: tuple[int, ...] = (SIZE,)
    options: dict[str, object] = {}

    def wrap(self, module: nn.Module) -> nn.Module:
        names = ("shard",) if len(self.mesh) == 1 else ("replicate", "shard")
        mesh = init_device_mesh("cpu", self.mesh, mesh_dim_names=names)
        for block in [child for child in module if isinstance(child, Block)]:
            fully_shard(block, mesh=mesh, **self.options)
        fully_shard(module, mesh=mesh, **self.options)
        return module


class Fsdp2Offload(Fsdp2):
    options = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}


class Fsdp2Half(Fsdp2):
    options = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}


class Fsdp2Clip(Fsdp2):
    clips = True


class Hsdp(Fsdp2):
    """Sharded over pairs, replicated over the rest; needs four ranks."""

    mesh = (max(1, SIZE // 2), 2)


STRATEGIES: dict[str, type[Local]] = {
    "local": Local,
    "ddp": Ddp,
    "ddp_static": DdpStatic,
    "ddp_unused": DdpUnused,
    "ddp_accumulate": DdpAccumulate,
    "ddp_bf16": DdpHalf,
    "ddp_fp16": DdpFloat16,
    "ddp_powersgd": DdpPowerSgd,
    "zero1": Zero1,
    "fsdp2": Fsdp2,
    "fsdp2_offload": Fsdp2Offload,
    "fsdp2_bf16": Fsdp2Half,
    "fsdp2_clip": Fsdp2Clip,
    "hsdp": Hsdp,
}
