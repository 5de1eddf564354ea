#!/usr/bin/env python3
"""What a collective waits for behind a large one in the background, with and without priorities.

    tests/labs/netlab with 2 --rate 1gbit -- bash -c \\
      'source tests/labs/launch.sh; launch 2 2 300 .venv/bin/python perf/priorities.py'

In a round an all_reduce of `--large` MiB is started on a group of its own, and all_gathers of
`--small` MiB follow one another on the default group as long as it runs, each after a pause: in the
first rounds there is no all_reduce, then it has the same priority, then it is in the background.
Not in turn, for connections that have carried another priority keep less in their sockets from then
on. A time is the slowest rank's. Rank 0 prints, for each way, the median and the 90th percentile of
the all_gathers, and the median time of the all_reduce, with half the distance of its extremes.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", type=int, default=64, help="MiB of the all_reduce (default 64)")
    parser.add_argument("--small", type=int, default=1, help="MiB gathered in all (default 1)")
    parser.add_argument("--pause-ms", type=float, default=20, help="between two (default 20)")
    parser.add_argument("--count", type=int, default=10, help="all_gathers a round (default 10)")
    parser.add_argument("--rounds", type=int, default=5, help="timed ones (default 5)")
    return parser.parse_args()


def slowest(values):
    """Of every value the largest of all ranks."""
    times = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times.tolist()


def run_round(options, group, large, small, whole):
    """Milliseconds of each all_gather that ended while the all_reduce ran, and of that."""
    dist.barrier()
    begin = time.perf_counter()
    work = None if group is None else dist.all_reduce(large, group=group, async_op=True)
    times, under_way = [], []
    for _ in range(options.count):
        time.sleep(options.pause_ms / 1e3)
        start = time.perf_counter()
        dist.all_gather_single(whole, small)
        times.append(1e3 * (time.perf_counter() - start))
        under_way.append(0.0 if work is None or not work.is_completed() else 1.0)
    if work is not None:
        work.wait()
    took = 1e3 * (time.perf_counter() - begin)
    times, ended = slowest(times), slowest(under_way)
    return [each for each, over in zip(times, ended, strict=True) if over == 0], slowest([took])[0]


def main():
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("isthmus")
    import isthmus

    large = torch.zeros((options.large << 20) // 4)
    small = torch.ones((options.small << 20) // 4 // dist.get_world_size())
    whole = torch.empty(small.numel() * dist.get_world_size())
    ways = {
        "alone": None,
        "normal": dist.new_group(),
        "background": dist.new_group(pg_options=isthmus.Options(priority="background")),
    }
    gathers = {name: [] for name in ways}
    reduces = {name: [] for name in ways}
    for name, group in ways.items():
        for number in range(options.rounds + 1):
            times, took = run_round(options, group, large, small, whole)
            if number > 0:
                gathers[name] += times
                reduces[name].append(took)
    for name, times in gathers.items():
        if dist.get_rank() != 0 or not times:
            continue
        times.sort()
        line = f"{name:10} all_gather {statistics.median(times):6.1f} ms, "
        line += f"p90 {times[len(times) * 9 // 10]:6.1f}, of {len(times)}"
        if ways[name] is not None:
            spread = (max(reduces[name]) - min(reduces[name])) / 2
            line += f"; all_reduce {statistics.median(reduces[name]):.0f} ±{spread:.0f} ms"
        print(line, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
