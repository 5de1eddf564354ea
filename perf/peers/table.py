#!/usr/bin/env python3
"""Tables of run.sh's CSV: rows of one core state are compared, rounds are summed up.

Those of docs/performance.md are made by perf/compare.py, which reads its CSV with this module.

    table.py CSV... [--ours isthmus] [--ranks N] [--op NAME] [--column median|min]
                    [--json]

A cell is the median over the rounds and, with more than one, the spread: half of most - least, in
percent of the median.
`ratio` is the best peer's time divided by ours: above 1, ours is faster. The state of the cores is
that of the probe line before the rows: near below 100 ns one way, far from 120 ns, mid between.
"""

import argparse
import csv
import json
import re
import statistics
import sys

# What is no peer: kernels without a library, and a group that moves nothing.
LIMITS = ("bare-", "torch-fake")
OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"]
NEAR_NS, FAR_NS = 100, 120
PROBE = re.compile(r"c2c one-way ns: .*?med (\d+)")


def state_of(ns):
    return "near" if ns < NEAR_NS else "far" if ns >= FAR_NS else "mid"


def read(names, column):
    """{(op, ranks, state): {bytes: {peer: [one time a round]}}} and {state: [ns]}."""
    cells, probes = {}, {}
    for name in names:
        state = "unprobed"
        with open(name, newline="") as file:
            for row in csv.reader(file):
                probe = PROBE.search(row[0]) if row else None
                if probe:
                    state = state_of(int(probe[1]))
                    probes.setdefault(state, []).append(int(probe[1]))
                elif len(row) >= 9 and row[3].isdigit():
                    table = cells.setdefault((row[1], int(row[2]), state), {})
                    peers = table.setdefault(int(row[3]), {})
                    peers.setdefault(row[0], []).append(float(row[column]))
    return cells, probes


def text(us):
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def cell(times):
    middle = statistics.median(times)
    if len(times) < 2:
        return text(middle)
    return f"{text(middle)} ±{(max(times) - min(times)) / middle / 2:.0%}"


def lines(table, ours):
    """The rows of one table, as dictionaries."""
    for size, peers in sorted(table.items()):
        us = {peer: statistics.median(times) for peer, times in peers.items()}
        others = {p: t for p, t in us.items() if not p.startswith((ours, *LIMITS))}
        mine = min((t for p, t in us.items() if p.startswith(ours)), default=None)
        best = min(others, key=others.get, default=None)
        yield {
            "bytes": size,
            "times": peers,
            "best": best,
            "gb_per_s": size / others[best] / 1e3 if best else None,
            "ratio": others[best] / mine if best and mine else None,
        }


def show(key, table, probes, args):
    op, ranks, state = key
    names = sorted({p for peers in table.values() for p in peers})
    names.sort(key=lambda p: (not p.startswith(args.ours), p.startswith("bare-"), p))
    ns = probes.get(state)
    seen = f", c2c {min(ns)}-{max(ns)} ns" if ns else ""
    print(f"\n{op}, {ranks} ranks, {state} cores{seen}; us")
    print(f"{'bytes':>10}" + "".join(f"{p:>16}" for p in names) + f"{'ratio':>8}  best, GB/s")
    for row in lines(table, args.ours):
        cells = (cell(row["times"][p]) if p in row["times"] else "-" for p in names)
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        best = f"{row['best']} {row['gb_per_s']:.2f}" if row["best"] else ""
        print(f"{row['bytes']:>10}" + "".join(f"{c:>16}" for c in cells) + f"{ratio:>8}  {best}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", nargs="+")
    parser.add_argument("--ours", default="isthmus", help="what our labels begin with")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--op")
    parser.add_argument("--column", choices=["median", "min"], default="median")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cells, probes = read(args.csv, {"median": 4, "min": 5}[args.column])
    keys = [k for k in cells if args.ranks in (None, k[1]) and args.op in (None, k[0])]
    keys.sort(key=lambda k: (k[1], OPS.index(k[0]), k[2]))
    if args.json:
        tables = [
            {"op": k[0], "ranks": k[1], "state": k[2], "rows": list(lines(cells[k], args.ours))}
            for k in keys
        ]
        json.dump({"probes_ns": probes, "tables": tables}, sys.stdout, indent=1)
        print()
        return
    for key in keys:
        show(key, cells[key], probes, args)


if __name__ == "__main__":
    main()
