#!/usr/bin/env python3
"""Between nodes: isthmus and its peers in turn over a shaped link, and how near the link's limit.

    nodes.py [--shapes 2x2,4x2] [--rates 1gbit,2500mbit] [--ops all_reduce] [--rounds 5]
             [--peers isthmus,gloo,ompi4,ompi5,impi] [--min 1M] [--max 16M] [--write]
    nodes.py --render

A shape is NODESxRANKS: network namespaces (tests/labs/netlab, root only) with so many ranks each,
joined by one link of the rate each way; rate "none" leaves it unshaped. perf/peers/run.sh runs the
peers; its environment (BENCH_BIN, BENCH_PYTHON, BENCH_LOCK) is passed on, perf/peers/setup.sh
builds them. In a round every peer runs once, all sizes in one run. Printed is markdown: medians
over the rounds with half the distance of the extremes, the best peer's time over ours, and
`optimum`: the time that the least bytes take at the link's goodput, over ours. The least bytes a
node sends are 2 S (N-1)/N for all_reduce of S bytes over N nodes, S (N-1)/N for all_gather and
reduce_scatter of S in all. With --write the rows are kept in perf/results/nodes.csv and the tables
put into docs/performance.md between its marks.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "peers"))

import table  # noqa: E402

NETLAB = ROOT / "tests" / "labs" / "netlab"
RESULTS = HERE / "results" / "nodes.csv"
DOCUMENT = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- begin nodes -->", "<!-- end -->"
COLUMNS = ["shape", "rate", "peer", "op", "bytes", "us"]
# What 1500-byte frames leave of a link for the bytes of a TCP stream with time stamps.
GOODPUT = 1448 / 1514
UNITS = {"gbit": 1e9, "mbit": 1e6}
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="2x2,4x2", help="default %(default)s")
    parser.add_argument("--rates", default="1gbit,2500mbit", help="default %(default)s")
    parser.add_argument("--ops", default="all_reduce", help="default %(default)s")
    parser.add_argument("--peers", default="isthmus,gloo,ompi4,ompi5,impi",
                        help="of perf/peers/run.sh (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--min", default="1048576", help="bytes (default %(default)s)")
    parser.add_argument("--max", default="16777216", help="bytes (default %(default)s)")
    parser.add_argument("--write", action="store_true", help="keep rows and tables")
    parser.add_argument("--more", action="store_true", help="with --write: beside the rows kept")
    parser.add_argument("--render", action="store_true", help="tables of the rows kept; no run")
    return parser.parse_args()


def optimum_us(op, size, nodes, rate):
    """Microseconds that the least bytes take on one node's link; None where it has no limit."""
    unit = next((unit for unit in UNITS if rate.endswith(unit)), None)
    if unit is None or op not in PASSES:
        return None
    bytes_per_us = float(rate.removesuffix(unit)) * UNITS[unit] / 8e6 * GOODPUT
    return PASSES[op] * size * (nodes - 1) / nodes / bytes_per_us


def measure(options, shape, rate):
    """Rows of one lab: every peer once in each round."""
    nodes, each = map(int, shape.split("x"))
    name = f"nodes{os.getpid()}"
    lab = os.environ | {"NETLAB_NAME": name, "NETLAB": str(NETLAB)}
    up = [NETLAB, "up", str(nodes)] + ([] if rate == "none" else ["--rate", rate])
    subprocess.run(up, env=lab, check=True, stdout=subprocess.DEVNULL)
    try:
        with tempfile.NamedTemporaryFile("r", suffix=".csv") as found:
            command = [HERE / "peers" / "run.sh", "-n", str(nodes * each), "-l", str(nodes)]
            command += ["--rounds", str(options.rounds), "-o", found.name]
            command += [*options.peers.split(","), "--", "--ops", options.ops]
            # Ranks outnumber processors here: bound to one they would wait for its other work.
            command += ["--min", options.min, "--max", options.max, "--pin", "0"]
            # A peer that fails is missing from the table; its message is on stderr.
            subprocess.run(command, env=lab | {"BENCH_PROBE": ""}, check=False)
            cells, _ = table.read([found.name], column=4)
    finally:
        subprocess.run([NETLAB, "down"], env=lab, check=False, stdout=subprocess.DEVNULL)
    return [
        dict(zip(COLUMNS, (shape, rate, peer, op, size, us)))
        for (op, _, _), sizes in cells.items()
        for size, peers in sizes.items()
        for peer, times in peers.items()
        for us in times
    ]


def size_text(size):
    for unit, text in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {text}"
    return f"{size} B"


def lines_of(rows):
    """The markdown tables: one for each operation, a line for each link and size."""
    for op in dict.fromkeys(row["op"] for row in rows):
        mine = [row for row in rows if row["op"] == op]
        peers = [name for name in dict.fromkeys(row["peer"] for row in mine) if name != "isthmus"]
        head = ["nodes x ranks", "link", "size", "isthmus", *peers, "best / ours", "optimum"]
        yield from ["", f"`{op}`, us:", "", "| " + " | ".join(head) + " |"]
        yield "|---" * len(head) + "|"
        for key in dict.fromkeys((row["shape"], row["rate"], int(row["bytes"])) for row in mine):
            shape, rate, size = key
            times = {
                peer: [float(row["us"]) for row in mine if row["peer"] == peer
                       and (row["shape"], row["rate"], int(row["bytes"])) == key]
                for peer in ["isthmus", *peers]
            }
            middle = {peer: statistics.median(us) for peer, us in times.items() if us}
            ours = middle.get("isthmus")
            best = min((us for peer, us in middle.items() if peer != "isthmus"), default=None)
            limit = optimum_us(op, size, int(shape.split("x")[0]), rate)
            cells = [table.cell(times[peer]) if times[peer] else "-" for peer in times]
            cells.append(f"{best / ours:.2f}" if best and ours else "-")
            cells.append(f"{limit / ours:.2f}" if limit and ours else "-")
            link = "not shaped" if rate == "none" else rate
            yield "| " + " | ".join([shape, link, size_text(size), *cells]) + " |"


def main():
    options = parse()
    rows = []
    if options.render or (options.more and RESULTS.exists()):
        with open(RESULTS, newline="") as file:
            rows = list(csv.DictReader(file))
    if not options.render:
        for shape in options.shapes.split(","):
            for rate in options.rates.split(","):
                print(f"nodes.py: {shape}, {rate}, {options.rounds} rounds", file=sys.stderr)
                rows += measure(options, shape, rate)
    text = "\n".join(lines_of(rows)).strip()
    print(text)
    if options.write:
        if not options.render:
            with open(RESULTS, "w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
        before, rest = DOCUMENT.read_text().split(BEGIN, 1)
        DOCUMENT.write_text(before + BEGIN + "\n\n" + text + "\n\n" + END + rest.split(END, 1)[1])


if __name__ == "__main__":
    main()
