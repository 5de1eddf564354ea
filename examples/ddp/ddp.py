"""Data parallel: every rank has the whole model; DDP averages the gradients over isthmus.

torchrun --nproc-per-node 2 examples/ddp/ddp.py            (add `--backend gloo` to compare)
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="isthmus")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    dist.init_process_group(args.backend)  # the one line that differs from Gloo
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    data = torch.Generator().manual_seed(2 + rank)  # every rank has samples of its own
    losses = []
    begin = time.perf_counter()
    for _ in range(args.steps):
        samples = torch.randn(64, 256, generator=data)
        loss = (model(samples) - samples[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(mean := loss.detach().clone(), dist.ReduceOp.AVG)
        losses.append(mean.item())
    took_ms = (time.perf_counter() - begin) / args.steps * 1e3
    if rank == 0:
        print(f"{size} ranks, {args.backend}: loss {losses[0]:.3f} to {losses[-1]:.3f}, "
              f"{took_ms:.1f} ms a step")
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
