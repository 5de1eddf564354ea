"""Tensor and pipeline parallel: two stages, and in each the layers are split over its ranks.

torchrun --nproc-per-node 4 examples/tp_pp/tp_pp.py          (an even number; or --backend gloo)
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WIDTH, BATCH, MICROBATCHES = 64, 32, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="isthmus")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group(args.backend)  # the one line that differs from Gloo
    torch.set_num_threads(1)
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "tp"))
    index = mesh["pp"].get_local_rank()
    torch.manual_seed(1 + index)  # the ranks of one stage start with equal layers
    layers = [torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)]
    block = parallelize_module(
        torch.nn.Sequential(*layers), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    stage = PipelineStage(block, index, 2, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(9)
    means = []
    for _ in range(args.steps):
        samples, losses = torch.randn(BATCH, WIDTH, generator=data), []
        optimizer.zero_grad()
        schedule.step(*([samples] if index == 0 else []),
                      **({"target": 0.1 * samples, "losses": losses} if index == 1 else {}))
        optimizer.step()
        means.append(sum(loss.item() for loss in losses) / MICROBATCHES)
    if index == 1:
        assert means[-1] < means[0], means
        if mesh["tp"].get_local_rank() == 0:
            print(f"2 stages of {shape[1]} ranks, {args.backend}: "
                  f"loss {means[0]:.4f} to {means[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
