"""Is it faster on this machine? The same collectives over isthmus and another backend, in turn.

    python -m isthmus.bench [--vs gloo] [--ranks 2] [--seconds 60] [--plot FILE.png] [--json]

Starts the ranks here, gives each both backends, and lets these take turns at every size: whatever
else the machine does disturbs both alike. A round is the mean of some operations by the slowest
rank; of the rounds the median is shown, with the quarter above and below it. Every element of every
result is compared with the exact one. Ratios carry over to other machines, microseconds do not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_OPS = ("all_reduce", "all_gather", "reduce_scatter")
_SIZES = (8, 512, 8 << 10, 64 << 10, 1 << 20, 16 << 20)  # bytes of the whole data
_ROUND_S = 0.02  # what a round is made to take
_JOIN_LIMIT_S = 120


def _arguments(words=None):
    parser = argparse.ArgumentParser(
        prog="python -m isthmus.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--vs", default="gloo", help="the other backend (default gloo)")
    parser.add_argument("--ranks", type=int, default=2, help="processes on this machine (2)")
    parser.add_argument("--seconds", type=float, default=60, help="time for measuring (60)")
    parser.add_argument("--plot", metavar="FILE", help="write a picture; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of the ranks it starts
    args = parser.parse_args(words)
    if args.ranks < 1 or args.seconds <= 0:
        parser.error("--ranks and --seconds must be above zero")
    return args


# Run on the ranks.


def _call(op, size, ranks):
    """The call for a group, and a function that says whether its result is right."""
    import torch
    import torch.distributed as dist

    count = max(size // 4, ranks) // ranks * ranks
    rank = dist.get_rank()
    if op == "all_reduce":
        tensor = torch.empty(count)

        def run(group):
            dist.all_reduce(tensor, group=group)

        def right(group):
            tensor.fill_(rank + 1.0)
            run(group)
            exact = bool((tensor == ranks * (ranks + 1) / 2).all())
            tensor.zero_()  # what is measured next: stays zero, however often it is summed
            return exact

        return run, right
    if op == "all_gather":
        own, whole = torch.full((count // ranks,), rank + 1.0), torch.empty(count)

        def run(group):
            dist.all_gather_single(whole, own, group=group)

        def right(group):
            run(group)
            blocks = whole.view(ranks, -1)
            return all(bool((blocks[i] == i + 1).all()) for i in range(ranks))

        return run, right
    whole, own = torch.full((count,), rank + 1.0), torch.empty(count // ranks)

    def run(group):
        dist.reduce_scatter_single(own, whole, group=group)

    def right(group):
        run(group)
        return bool((own == ranks * (ranks + 1) / 2).all())

    return run, right


def _measure(run, group, count):
    """Microseconds of one operation, the mean of `count`."""
    begin = time.perf_counter()
    for _ in range(count):
        run(group)
    return (time.perf_counter() - begin) / count * 1e6


def _agree(group, value):
    """The largest of the ranks' values."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(most := torch.tensor([value], dtype=torch.float64), dist.ReduceOp.MAX, group)
    return most.item()


def _rank_main(args, folder):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    store = dist.FileStore(str(folder / "store"), args.ranks)
    dist.init_process_group("isthmus", store=store, rank=rank, world_size=args.ranks)
    groups = {"isthmus": dist.group.WORLD, args.vs: dist.new_group(backend=args.vs)}
    control = groups["isthmus"]
    cells = [(op, size) for op in _OPS for size in _SIZES]
    share_s = args.seconds / len(cells)
    results = []
    for done, (op, size) in enumerate(cells):
        run, right = _call(op, size, args.ranks)
        wrong = [name for name, group in groups.items() if not right(group)]
        counts, rounds = {}, {name: [] for name in groups}
        for name, group in groups.items():
            one_us = _agree(control, _measure(run, group, 3))
            counts[name] = max(1, int(_ROUND_S * 1e6 / one_us))
        end = time.perf_counter() + share_s
        more = True
        while more:
            for name, group in groups.items():
                dist.barrier(group)
                rounds[name].append(_agree(control, _measure(run, group, counts[name])))
            enough = len(rounds["isthmus"]) >= 3 and time.perf_counter() > end
            more = _agree(control, 0.0 if enough else 1.0) > 0
        results.append({"op": op, "bytes": size, "us": rounds, "wrong": wrong})
        if rank == 0:
            print(f"{done + 1}/{len(cells)}", flush=True)
    everybody = [None] * args.ranks
    dist.all_gather_object(everybody, [row["wrong"] for row in results])
    for row, *wrong in zip(results, *everybody, strict=True):
        row["wrong"] = sorted({name for one in wrong for name in one})
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


# The parent.


def _spread(values):
    """Median and the quarters below and above it."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def _summary(results, other):
    rows = []
    for row in results:
        ours, theirs = _spread(row["us"]["isthmus"]), _spread(row["us"][other])
        rows.append({
            "op": row["op"], "bytes": row["bytes"], "rounds": len(row["us"]["isthmus"]),
            "isthmus_us": ours, f"{other}_us": theirs, "times_faster": theirs[0] / ours[0],
            "wrong": row["wrong"],
        })
    return rows


def _print_table(rows, other, ranks):
    print(f"{ranks} ranks on this machine; us for one operation: median (quarter below, above)")
    print(f"{'operation':15} {'bytes':>9}  {'isthmus':>28} {other:>28} {'faster':>8}")
    for row in rows:
        ours, theirs = ("{:.1f} ({:.1f}, {:.1f})".format(*row[f"{name}_us"])
                        for name in ("isthmus", other))
        note = f"  WRONG: {', '.join(row['wrong'])}" if row["wrong"] else ""
        print(f"{row['op']:15} {row['bytes']:>9}  {ours:>28} {theirs:>28} "
              f"{row['times_faster']:>7.2f}x{note}")


def _plot(rows, other, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(_OPS), figsize=(4.5 * len(_OPS), 4), sharey=True)
    for panel, op in zip(panels, _OPS, strict=True):
        for name in ("isthmus", other):
            mine = [row for row in rows if row["op"] == op]
            middle, low, high = zip(*(row[f"{name}_us"] for row in mine), strict=True)
            panel.plot([row["bytes"] for row in mine], middle, marker="o", label=name)
            panel.fill_between([row["bytes"] for row in mine], low, high, alpha=0.2)
        panel.set(title=op, xscale="log", yscale="log", xlabel="bytes")
    panels[0].set_ylabel("us for one operation")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _follow(process, progress):
    """Shows how many cells are done, until the rank ends."""
    for line in process.stdout:
        if progress is not None:
            progress.update(int(line.split("/")[0]) - progress.n)


def _progress(quiet):
    if quiet or not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=len(_OPS) * len(_SIZES), desc="sizes", leave=False)


def _run(args, folder):
    words = ["--vs", args.vs, "--ranks", str(args.ranks), "--seconds", str(args.seconds)]
    words += ["--folder", str(folder)]
    ranks = []
    for rank in range(args.ranks):
        environment = dict(os.environ, RANK=str(rank))
        ranks.append(subprocess.Popen(
            [sys.executable, "-m", "isthmus.bench", *words], env=environment, text=True,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
    try:
        _follow(ranks[0], _progress(args.json))
        codes = [process.wait(timeout=_JOIN_LIMIT_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    if any(codes):
        raise SystemExit(f"isthmus.bench: the ranks ended with {codes}; their errors are above")
    return json.loads((folder / "results.json").read_text())


def main():
    args = _arguments()
    if args.folder is not None:
        _rank_main(args, args.folder)
        return 0
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as folder:
        rows = _summary(_run(args, Path(folder)), args.vs)
    if args.json:
        print(json.dumps({"ranks": args.ranks, "vs": args.vs, "rows": rows}))
    else:
        _print_table(rows, args.vs, args.ranks)
        best = statistics.median(row["times_faster"] for row in rows)
        print(f"median over all rows: isthmus is {best:.2f} times as fast as {args.vs}")
    if args.plot:
        _plot(rows, args.vs, args.plot)
        print(f"plot: {args.plot}", file=sys.stderr)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
