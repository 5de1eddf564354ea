#!/usr/bin/env python3
"""FSDP2 with private buffers against FSDP2 with buffers of the group, which ranks read in place.

    torchrun --nproc-per-node 2 perf/fsdp2_buffers.py [--steps 9] [--layers 8] [--json]

Both models train in turn, a step each, in one process a rank. "inside" is the time between the
issue and the end of every collective of a step, summed; "step" is all of it. Medians over the steps
with half the distance of the extremes. Rank 0 prints.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import isthmus

PRIVATE, GROUP = "private", "of the group"


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=9, help="timed steps of each (default 9)")
    parser.add_argument("--layers", type=int, default=8, help="of the model (default 8)")
    parser.add_argument("--width", type=int, default=512, help="of its layers (default 512)")
    parser.add_argument("--rows", type=int, default=64, help="of a rank's batch (default 64)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args()


class Block(torch.nn.Module):
    """The parameters of a transformer's block: 12 x width x width."""

    def __init__(self, width):
        super().__init__()
        self.mix = torch.nn.Linear(width, 4 * width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(x)) * torch.sigmoid(self.mix(x)))


def sharded(options, buffers):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[Block(options.width) for _ in range(options.layers)])
    for part in [*model, model]:
        fully_shard(part)
    if buffers == GROUP:
        isthmus.use_group_memory(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def step(model, optimizer, data):
    model(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def spread(seconds):
    return statistics.median(seconds) * 1e3, (max(seconds) - min(seconds)) / 2 * 1e3


def main():
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("isthmus")
    dist.group.WORLD._enable_collectives_timing()
    inside = []
    dist.group.WORLD._register_on_completion_hook(
        lambda info: inside.append(info.active_duration.total_seconds())
    )
    models = {buffers: sharded(options, buffers) for buffers in (PRIVATE, GROUP)}
    spent = {buffers: ([], []) for buffers in models}
    for index in range(options.steps + 2):
        for buffers, (model, optimizer) in models.items():
            data = torch.randn(options.rows, options.width)
            dist.barrier()
            dist.group.WORLD._wait_for_pending_works()
            inside.clear()
            begin = time.perf_counter()
            step(model, optimizer, data)
            whole = time.perf_counter() - begin
            dist.group.WORLD._wait_for_pending_works()
            if index >= 2:
                spent[buffers][0].append(whole)
                spent[buffers][1].append(sum(inside))
    if dist.get_rank() == 0:
        rows = {
            buffers: {"step_ms": spread(whole), "inside_ms": spread(within)}
            for buffers, (whole, within) in spent.items()
        }
        ratio = rows[GROUP]["inside_ms"][0] / rows[PRIVATE]["inside_ms"][0]
        if options.json:
            print(json.dumps({"ranks": dist.get_world_size(), "rows": rows, "ratio": ratio}))
        else:
            for buffers, row in rows.items():
                (whole, off), (within, by) = row["step_ms"], row["inside_ms"]
                text = f"step {whole:7.1f} ±{off:.1f} ms, inside {within:7.1f} ±{by:.1f} ms"
                print(f"{buffers:13} {text}")
            print(f"inside, of the group / private: {ratio:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
