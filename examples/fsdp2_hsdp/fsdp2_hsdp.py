"""Hybrid sharding: parameters are sharded over the ranks of a node and replicated across nodes.

torchrun --nproc-per-node 4 examples/fsdp2_hsdp/fsdp2_hsdp.py --replicas 2   (or --backend gloo)
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="isthmus")
    parser.add_argument("--replicas", type=int, default=1, help="nodes: copies of the parameters")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group(args.backend)  # the one line that differs from Gloo
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    # Gradients cross between replicas only as shards: 1 / (size / replicas) of the bytes.
    shape, names = (args.replicas, size // args.replicas), ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    blocks = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU()) for _ in range(4)]
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(128, 1))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(2 + rank)
    samples = torch.randn(64, 128, generator=data)
    losses = []
    for _ in range(args.steps):
        loss = (model(samples) - samples[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        dist.all_reduce(mean := loss.detach().clone(), dist.ReduceOp.AVG)
        losses.append(mean.item())
    if rank == 0:
        print(f"{shape[0]} replicas of {shape[1]} shards, {args.backend}: "
              f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
