"""Strategies that cut the model itself: FSDP1, tensor and sequence parallelism, pipelines."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from model import RANK, SIZE, Block, loss_of
from strategies import CLIP, Local, full_parameters

_MICROBATCHES = 4


class Fsdp1(Local):
    kind = "FULL_SHARD"

    def wrap(self, module: nn.Module) -> nn.Module:
        hybrid = "HYBRID" in self.kind
        return FullyShardedDataParallel(
            module,
            sharding_strategy=ShardingStrategy[self.kind],
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            use_orig_params=True,
            device_id=torch.device("cpu"),
            device_mesh=init_device_mesh("cpu", (SIZE // 2, 2)) if hybrid else None,
        )

    def parameters(self) -> dict[str, torch.Tensor]:
        with FullyShardedDataParallel.summon_full_params(self.module, writeback=False):
            return full_parameters(self.module)


class Fsdp1GradOp(Fsdp1):
    kind = "SHARD_GRAD_OP"


class Fsdp1NoShard(Fsdp1):
    kind = "NO_SHARD"


class Fsdp1Hybrid(Fsdp1):
    kind = "HYBRID_SHARD"


class Fsdp1Hybrid2(Fsdp1):
    kind = "_HYBRID_SHARD_ZERO2"


class Fsdp1Clip(Fsdp1):
    """The norm of all gradients is a sum over the ranks."""

    clips = True

    def clip(self) -> None:
        self.module.clip_grad_norm_(CLIP)


class TensorCut(Local):
    """Every block's matrices are cut by columns, then by rows; all ranks see the whole batch."""

    replicas = 1
    column, row = ColwiseParallel(), RowwiseParallel()

    def wrap(self, module: nn.Module) -> nn.Module:
        self.mesh = init_device_mesh("cpu", (SIZE,))
        plan = {name: self.column for name in ("query", "key", "value", "up")}
        plan |= {name: self.row for name in ("out", "down")}
        for block in [child for child in module if isinstance(child, Block)]:
            parallelize_module(block, self.mesh, plan | self.norms())
        return module

    def norms(self) -> dict[str, SequenceParallel]:
        return {}


class SequenceCut(TensorCut):
    """Between its matrices a block holds a part of every sequence only."""

    column = ColwiseParallel(input_layouts=Shard(1))
    row = RowwiseParallel(output_layouts=Shard(1))

    def wrap(self, module: nn.Module) -> nn.Module:
        super().wrap(module)
        ends = {
            "0": PrepareModuleOutput(
                output_layouts=Replicate(), desired_output_layouts=Shard(1)
            ),
            str(len(module) - 2): SequenceParallel(),
            str(len(module) - 1): ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Replicate()
            ),
        }
        return parallelize_module(module, self.mesh, ends)

    def norms(self) -> dict[str, SequenceParallel]:
        return {"norm1": SequenceParallel(), "norm2": SequenceParallel()}


class Pipeline(Local):
    """Each rank has some layers in a row; the last one knows the loss."""

    replicas = 1
    whole = False
    schedule: type = pipelining.ScheduleGPipe
    stages = 1  # of a rank
    layers_least = SIZE

    def wrap(self, module: nn.Module) -> nn.Module:
        layers = list(module.named_children())
        count = SIZE * self.stages
        # The first stage has the embedding besides, the last one the norm and the head.
        cuts = [0] + [1 + (len(layers) - 3) * i // count for i in range(1, count)] + [len(layers)]
        parts = nn.ModuleList()
        stages = []
        for index in range(RANK, count, SIZE):
            part = nn.Sequential()
            for name, layer in layers[cuts[index] : cuts[index + 1]]:
                part.add_module(name, layer)
            parts.append(part)
            stages.append(
                pipelining.PipelineStage(part, index, count, torch.device("cpu"))
            )
        given = stages if self.stages > 1 else stages[0]
        self.pipeline = self.schedule(given, _MICROBATCHES, loss_fn=loss_of)
        return parts

    def parameters(self) -> dict[str, torch.Tensor]:
        """This rank's own."""
        return {
            name: value for part in self.module for name, value in full_parameters(part).items()
        }

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> float | None:
        losses: list[torch.Tensor] = []
        last = {"target": targets, "losses": losses} if RANK == SIZE - 1 else {}
        self.pipeline.step(*([inputs] if RANK == 0 else []), **last)
        return sum(loss.item() for loss in losses) / len(losses) if losses else None


class Pipeline1F1B(Pipeline):
    schedule = pipelining.Schedule1F1B


class PipelineInterleaved(Pipeline):
    schedule = pipelining.ScheduleInterleaved1F1B
    stages = 2
    layers_least = 2 * SIZE


ENGINES: dict[str, type[Local]] = {
    "fsdp1_full": Fsdp1,
    "fsdp1_grad_op": Fsdp1GradOp,
    "fsdp1_no_shard": Fsdp1NoShard,
    "fsdp1_hybrid": Fsdp1Hybrid,
    "fsdp1_hybrid2": Fsdp1Hybrid2,
    "fsdp1_clip": Fsdp1Clip,
    "tensor": TensorCut,
    "sequence": SequenceCut,
    "pipe_gpipe": Pipeline,
    "pipe_1f1b": Pipeline1F1B,
    "pipe_inter": PipelineInterleaved,
}
