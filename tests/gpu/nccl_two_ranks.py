"""One rank of nccl_two_ranks.sh: collectives of torch's nccl backend, checked and timed."""

import os
import time

import torch
import torch.distributed as dist


def expect(name, got, want):
    torch.cuda.synchronize()
    if not torch.equal(got, want):
        raise SystemExit(f"{name}: got {got[:4].tolist()}, expected {want[:4].tolist()}")


def check(rank, count):
    """Every collective once with `count` elements a rank; the operands are exact in float32."""
    own = torch.arange(count, device="cuda", dtype=torch.float32) % 1000 + rank
    other = own + 1 - 2 * rank
    total = own.clone()
    dist.all_reduce(total)
    expect("all_reduce", total, own + other)
    gathered = torch.empty(2 * count, device="cuda")
    dist.all_gather_into_tensor(gathered, own)
    expect("all_gather", gathered, torch.cat([own, other] if rank == 0 else [other, own]))
    part = torch.empty(count, device="cuda")
    dist.reduce_scatter_tensor(part, gathered)
    expect("reduce_scatter", part, 2 * own)


def main():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=os.environ["RENDEZVOUS"], rank=rank, world_size=2)
    for count in (1, 1024, 65536, 1 << 22):
        check(rank, count)
        start = time.monotonic()
        for _ in range(5):
            check(rank, count)
        if rank == 0:
            print(f"{4 * count} B: {(time.monotonic() - start) / 5 * 1e3:.2f} ms for the three")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
