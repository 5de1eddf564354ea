#!/usr/bin/env python3
"""bench.cc's measuring loop for a torch.distributed backend.

RANK, WORLD_SIZE and MASTER_* come from the environment; the options and the CSV are bench.cc's.

`--backend fake` is torch's process group that moves nothing: the floor under any backend.

    bench_torch.py [--backend gloo] [--import MODULE] [--ops a,b|all] [--min 8] [--max 67108864]
"""

import argparse
import importlib
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"]
MOST_CALLS = 20000

# torch 2.13 renamed these two; the old names warn.
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument(
        "--import",
        dest="module",
        help="a module whose import registers the backend, or whose all_reduce(tensor) is timed",
    )
    parser.add_argument("--label", help="the first column; default: the backend")
    parser.add_argument("--ops", default="all")
    numbers = {"min": 8, "max": 64 << 20, "factor": 4, "reps": 5, "target-ms": 15, "pin": 1}
    for name, value in {**numbers, "touch": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def join_fake_group():
    """torch's group that moves nothing: what the Python side of a call costs any backend."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())


class Bench:
    """One backend's process group and what its measurements share."""

    def __init__(self, args):
        module = importlib.import_module(args.module) if args.module else None
        self.does_nothing = args.backend == "fake"
        if self.does_nothing:
            join_fake_group()
        else:
            dist.init_process_group(args.backend)
        self.args = args
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.all_reduce = getattr(module, "all_reduce", dist.all_reduce)
        self.label = args.label or args.backend

    def make(self, op, count):
        """The call on `count` floats a block, its tensors, and the check of a first call."""
        size, rank = self.size, self.rank
        total = size * (size + 1) // 2
        own = torch.full((count,), rank + 1.0)
        if op == "all_reduce":
            return lambda: self.all_reduce(own), [own], lambda: (own == total).all()
        if op == "broadcast":
            own.fill_(7.0 * (rank == 0))
            turn = iter(range(1 << 62))
            return (
                lambda: dist.broadcast(own, next(turn) % size),
                [own],
                lambda: (own == 7).all(),
            )
        if op == "barrier":
            return dist.barrier, [], lambda: True
        whole = torch.full((count * size,), rank + 1.0)
        want = torch.arange(1.0, size + 1).repeat_interleave(count)
        if op == "all_gather":
            part = whole[rank * count : (rank + 1) * count]
            return lambda: all_gather(whole, part), [whole], lambda: (whole == want).all()
        if op == "reduce_scatter":
            return (
                lambda: reduce_scatter(own, whole),
                [own, whole],
                lambda: (own == total).all(),
            )
        out = torch.empty(count * size)
        return (
            lambda: dist.all_to_all_single(out, whole),
            [whole, out],
            lambda: (out == want).all(),
        )

    def timed(self, call, tensors, calls):
        """Microseconds a call, the largest over the ranks."""
        spent = 0
        touch = self.args.touch
        for step in [1] * calls if touch else [calls]:
            if touch:
                for tensor in tensors:
                    tensor.zero_()
            dist.barrier()
            spent -= time.perf_counter_ns()
            for _ in range(step):
                call()
            spent += time.perf_counter_ns()
        slowest = torch.tensor([spent / 1e3 / calls], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.item()

    def measure(self, op, count, size):
        call, tensors, right = self.make(op, count)
        call()
        if not self.does_nothing and not right():
            print(f"{self.label} rank {self.rank}: WRONG {op} of {size} bytes", file=sys.stderr)
        for tensor in tensors:
            tensor.zero_()
        target = self.args.target_ms * 1e3
        once = self.timed(call, tensors, self.size if size < 1 << 20 else 1)
        for _ in range(3):
            if once < target:
                once = min(once, self.timed(call, tensors, 2))
        calls = max(1, min(MOST_CALLS, int(target / once)))
        reps = self.args.reps
        us = [self.timed(call, tensors, calls) for _ in range(reps)]
        if self.rank == 0:
            times = f"{statistics.median(us):.3f},{min(us):.3f},{max(us):.3f}"
            print(f"{self.label},{op},{self.size},{size},{times},{calls},{reps}", flush=True)

    def sweep(self, op):
        last, want = None, self.args.min
        while want < self.args.max * self.args.factor:
            size, want = min(want, self.args.max), want * self.args.factor
            blocks = self.size if op in ("all_gather", "reduce_scatter", "all_to_all") else 1
            count = max(1, size // 4 // blocks)
            size = 0 if op == "barrier" else count * 4 * blocks
            if size != last:
                self.measure(op, count, size)
            last = size


def main():
    args = parse()
    if args.pin:  # Round robin, as in bench.cc.
        os.sched_setaffinity(0, {int(os.environ["RANK"]) % os.cpu_count()})
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    bench = Bench(args)
    for op in OPS if args.ops == "all" else args.ops.split(","):
        bench.sweep(op)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
