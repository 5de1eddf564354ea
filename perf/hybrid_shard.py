#!/usr/bin/env python3
"""HYBRID_SHARD's gradient reduction in one call against torch's two: what the pipeline gains.

    tests/labs/netlab with 2 --rate 1gbit -- bash -c \\
      'source tests/labs/launch.sh; launch 2 2 300 .venv/bin/python perf/hybrid_shard.py'

A node is a shard group of `--locals` ranks, its counterparts are the replicas. In a round every way
runs once, in turn, on data just written: isthmus.fsdp.reduce_shards; reduce_scatter_single over the
shard group, then all_reduce over the replicate group, over isthmus and over Gloo; and these two
alone over isthmus. A time is the slowest rank's; medians over the rounds with half the distance of
the extremes. Rank 0 prints; sizes are of the whole gradient buffer of a rank.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--locals", type=int, default=2, help="ranks of a node (default 2)")
    parser.add_argument("--mib", default="1,4,16,64", help="sizes in MiB (default 1,4,16,64)")
    parser.add_argument("--rounds", type=int, default=7, help="timed ones (default 7)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args()


def groups_of(backend, shards):
    """This rank's shard group and replicate group."""
    ranks = list(range(dist.get_world_size()))
    rows = [ranks[first : first + shards] for first in ranks[::shards]]
    columns = [ranks[shard::shards] for shard in range(shards)]
    mine = []
    for lists in (rows, columns):
        made = [(dist.new_group(members, backend=backend), members) for members in lists]
        mine += [group for group, members in made if dist.get_rank() in members]
    return mine


def main():
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("isthmus")
    from isthmus import fsdp

    shards = options.locals
    inside, across = groups_of("isthmus", shards)
    gloo_inside, gloo_across = groups_of("gloo", shards)

    def two_calls(shard_group, replicate_group):
        def run(output, whole):
            dist.reduce_scatter_single(output, whole, group=shard_group)
            dist.all_reduce(output, group=replicate_group)

        return run

    ways = {
        "one call": lambda output, whole: fsdp.reduce_shards(output, whole, shards),
        "two calls": two_calls(inside, across),
        "two calls, Gloo": two_calls(gloo_inside, gloo_across),
        "reduce_scatter": lambda output, whole: dist.reduce_scatter_single(
            output, whole, group=inside
        ),
        "all_reduce": lambda output, whole: dist.all_reduce(output, group=across),
    }
    rows = []
    for mib in map(int, options.mib.split(",")):
        whole = torch.empty((mib << 20) // 4)
        output = torch.empty(whole.numel() // shards)
        times = {name: [] for name in ways}
        for number in range(options.rounds + 1):
            for name, run in ways.items():
                whole.fill_(dist.get_rank() + 1)
                output.fill_(1)
                dist.barrier()
                begin = time.perf_counter()
                run(output, whole)
                spent = torch.tensor([1e3 * (time.perf_counter() - begin)])
                dist.all_reduce(spent, op=dist.ReduceOp.MAX)
                if number > 0:
                    times[name].append(spent.item())
        row = {"mib": mib, "ms": {}, "spread_ms": {}}
        for name, values in times.items():
            row["ms"][name] = statistics.median(values)
            row["spread_ms"][name] = (max(values) - min(values)) / 2
        rows.append(row)
        if dist.get_rank() == 0 and not options.json:
            cells = [f"{name} {row['ms'][name]:.1f} ±{row['spread_ms'][name]:.1f}" for name in ways]
            gain = row["ms"]["two calls"] / row["ms"]["one call"]
            print(f"{mib:4} MiB, ms: " + ", ".join(cells) + f"; gain {gain:.2f}", flush=True)
    if dist.get_rank() == 0 and options.json:
        print(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
