#!/usr/bin/env python3
"""Reproduces the tables of docs/performance.md: isthmus, its peers and the bare kernels in turn.

    compare.py --list
    compare.py all-reduce-p2 others-p2 [--quick] [--rounds 5] [--tries 10] [--write]
    compare.py all-reduce-p2 --render

For each table N rounds run; in a round every program runs once, after a probe of how far apart the
processors are (perf/limits/c2c), through perf/peers/run.sh. Its environment (BENCH_BIN, BENCH_LOCK,
BENCH_SCHED, BENCH_PYTHON, ...) is passed on. The rows are kept in perf/results/TABLE.csv, a plot
beside them if matplotlib is there. Printed is markdown: medians over the rounds with half the
distance of the extremes, the best peer's time and the best bare kernel's over ours, and whether
the goal is met (perf/goals.py). Rows of one core state are compared. A state that was not seen in
the rounds is probed for, up to --tries in all; what then is missing is noted as not measured.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

import goals  # noqa: E402
import table as rows  # noqa: E402

RESULTS = HERE / "results"
DOCUMENT = HERE.parent / "docs" / "performance.md"
STATES = ("near", "far")
PRIVATE_BARE, MAPPED_BARE = "bare kernel", "bare mapped"


@dataclass(frozen=True)
class Program:
    """One of run.sh's peers, and how this table runs it."""

    peer: str
    options: str = ""
    tag: str = ""
    bare: str = ""


@dataclass(frozen=True)
class Table:
    about: str
    ranks: tuple
    programs: tuple
    options: str
    goal: object
    ours: str = "isthmus"


ISTHMUS = Program("isthmus")
MPI = tuple(map(Program, ("impi", "ompi4", "ompi5")))
# ompi5's ranks spin: 20 ms an operation where they outnumber the processors.
MPI_CROWDED = tuple(map(Program, ("impi", "impi-yield", "ompi4")))
BARE = Program("bare")
OTHERS = "all_gather,reduce_scatter,broadcast,all_to_all"
TORCH = Program("torch:isthmus:isthmus")

TABLES = {
    "all-reduce-p2": Table(
        "all_reduce, C++, 2 ranks", (2,), (ISTHMUS, *MPI, BARE), "--ops all_reduce", goals.cpp
    ),
    "all-reduce-p48": Table(
        "all_reduce, C++, 4 and 8 ranks",
        (4, 8),
        (ISTHMUS, *MPI_CROWDED, BARE),
        "--ops all_reduce",
        goals.cpp,
    ),
    "others-p2": Table(
        "the other collectives, C++, 2 ranks",
        (2,),
        (ISTHMUS, *MPI, BARE),
        f"--ops {OTHERS}",
        goals.cpp,
    ),
    "others-p48": Table(
        "the other collectives, C++, 4 and 8 ranks",
        (4, 8),
        (ISTHMUS, *MPI_CROWDED, BARE),
        f"--ops {OTHERS}",
        goals.cpp,
    ),
    "mapped": Table(
        "all_reduce, C++, buffers from our allocator beside private ones, 2 ranks",
        (2,),
        (Program("isthmus", "--mapped 1", "-mapped"), ISTHMUS, *MPI, BARE),
        "--ops all_reduce --min 32768",
        goals.mapped,
        ours="isthmus-mapped",
    ),
    "half": Table(
        "bfloat16 and float16 beside float32 (bytes of the float32 data), C++, 2 and 4 ranks",
        (2, 4),
        (
            Program("isthmus", "--min 1048576"),
            Program("isthmus", "--dtype bfloat16 --min 524288 --max 33554432", "-bfloat16"),
            Program("isthmus", "--dtype float16 --min 524288 --max 33554432", "-float16"),
        ),
        "--ops all_reduce",
        goals.half,
    ),
    "torch": Table(
        "torch.distributed, against Gloo, 2 and 4 ranks",
        (2, 4),
        (TORCH, Program("gloo")),
        f"--ops all_reduce,{OTHERS}",
        goals.torch,
        ours="torch-isthmus",
    ),
    "torch-small": Table(
        "torch.distributed, small all_reduce, beside a group that moves nothing, 2 ranks",
        (2,),
        (TORCH, Program("torch:fake:os"), Program("gloo")),
        "--ops all_reduce --max 2048",
        goals.torch,
        ours="torch-isthmus",
    ),
}


# ---- Measuring


class Bar:
    """How far a table is: one line, rewritten on a terminal."""

    def __init__(self, name, steps):
        self.name, self.steps, self.done, self.start = name, steps, 0, time.monotonic()

    def show(self, doing):
        self.steps = max(self.steps, self.done + 1)
        part = self.done / self.steps
        left = (time.monotonic() - self.start) * (1 / part - 1) if self.done else 0
        clock = f"{int(left) // 60}:{int(left) % 60:02} left" if self.done else ""
        filled = int(20 * part)
        text = f"{self.name} [{'#' * filled}{'.' * (20 - filled)}] {part:4.0%} {doing} {clock}"
        end = "\r" if sys.stderr.isatty() else "\n"
        print(f"{text:<100}", end=end, file=sys.stderr, flush=True)
        self.done += 1


def bare_options(options):
    """Of bench's options those that the bare kernels know, too."""
    words = options.split()
    known = ("--ops", "--min", "--max", "--touch")
    pairs = zip(words[::2], words[1::2], strict=True)
    return " ".join(f"{key} {value}" for key, value in pairs if key in known)


def run(program, ranks, options, csv):
    env = dict(os.environ, BENCH_TAG=program.tag, BENCH_BARE=bare_options(options))
    words = f"{options} {program.options}".split()
    command = [HERE / "peers" / "run.sh", "-n", str(ranks), "-o", csv, program.peer, "--", *words]
    if subprocess.run(command, env=env, check=False).returncode != 0:
        sys.exit(f"compare.py: run.sh failed for {program.peer}; its message is above")


def run_round(name, number, csv, bar, options):
    table = TABLES[name]
    for ranks in table.ranks:
        for program in table.programs:
            bar.show(f"round {number}, {ranks} ranks, {program.peer}{program.tag}")
            run(program, ranks, options, csv)


def probe(csv):
    """The state of the cores now, noted in the CSV; None where there is no probe."""
    folder = os.environ.get("BENCH_BIN", str(HERE / "peers" / "build"))
    command = os.environ.get("BENCH_PROBE", f"{folder}/c2c").split()
    if os.geteuid() == 0:
        command = ["chrt", "-f", "1", *command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = rows.PROBE.search(done.stdout)
    if found is None:
        return None
    with open(csv, "a") as file:
        file.write(f"# {time.strftime('%T')} between rounds {done.stdout}")
    return rows.state_of(int(found[1]))


def states_of_ours(name, csv):
    cells, _ = rows.read([csv], 4)
    ours = TABLES[name].ours
    return {
        key[2]
        for key, table in cells.items()
        if any(peer.startswith(ours) for peers in table.values() for peer in peers)
    }


def measure(name, args):
    csv = args.results / f"{name}.csv"
    csv.parent.mkdir(parents=True, exist_ok=True)
    csv.unlink(missing_ok=True)
    table = TABLES[name]
    options = f"{table.options} --touch 1"
    if args.quick:
        options += " --reps 3 --target-ms 5"
        options += "" if "--max" in options or table.goal is goals.half else " --max 1048576"
    bar = Bar(name, args.rounds * len(table.ranks) * len(table.programs))
    for number in range(1, args.rounds + 1):
        run_round(name, number, csv, bar, options)
    number = args.rounds
    for _ in range(args.rounds, args.tries):
        missing = set(STATES) - states_of_ours(name, csv)
        if not missing or args.quick:
            break
        time.sleep(1)
        if probe(csv) in missing:
            number += 1
            run_round(name, number, csv, bar, options)
    if sys.stderr.isatty():
        print(file=sys.stderr)


# ---- The tables


def scaled(cells):
    """The half table by bytes of float32, in which 16-bit rows have twice their own."""
    for table in cells.values():
        for size in sorted(table, reverse=True):
            halves = {p: t for p, t in table[size].items() if p.endswith("float16")}
            for peer, times in halves.items():
                del table[size][peer]
                table.setdefault(size * 2, {})[peer] = times
        for size in [size for size, peers in table.items() if not peers]:
            del table[size]
    return cells


def fastest(times, of):
    """(time, name) of the fastest among those that `of` accepts; (None, None) without one."""
    found = [(statistics.median(t), name) for name, t in times.items() if of(name)]
    return min(found, default=(None, None))


def is_bare(name):
    return name.startswith("bare-") and not name.startswith("bare-direct")


@dataclass(frozen=True)
class Row:
    """One size in one state: what is printed and plotted."""

    bytes: int
    times: dict
    ours: str
    us: float
    best: float | None
    bare: tuple
    direct: tuple
    limit: tuple | None

    @property
    def met(self):
        return None if self.limit is None else self.us <= self.limit[1]

    def verdict(self):
        if self.limit is None:
            return "-"
        goal, us = self.limit
        said = "met" if self.met else f"missed {self.us / us:.2f}x"
        return f"{goal}: {rows.text(us)} {said}"


def rows_of(table, key, sizes):
    op, ranks, state = key
    own = ("isthmus-float16", "isthmus-bfloat16") if table.goal is goals.half else (table.ours,)
    for size, times in sorted(sizes.items()):
        us = {name: statistics.median(t) for name, t in times.items()}
        if table.goal is goals.half:
            peers = {name: t for name, t in us.items() if name == "isthmus"}
        else:
            peers = {
                name: t for name, t in us.items() if "isthmus" not in name and
                not name.startswith(rows.LIMITS)
            }
        best = min(peers.values(), default=None)
        bare = fastest(times, is_bare)
        direct = fastest(times, lambda name: name.startswith("bare-direct"))
        cell = goals.Cell(
            op, ranks, state, size, best, peers, bare[0], direct[0], us.get("torch-fake")
        )
        for name in own:
            if name in us:
                yield Row(
                    size, times, name, us[name], best, bare, direct, goals.limit(table.goal, cell)
                )


def ratio(of, to):
    return f"{of / to:.2f}" if of and to else "-"


def kernel(found, times):
    us, name = found
    return f"{rows.cell(times[name])} {name.removeprefix('bare-')}" if us else "-"


def markdown(table, key, found, names, ns):
    """One table's lines."""
    op, ranks, state = key
    half = table.goal is goals.half
    bare = any(row.bare[0] for row in found)
    mapped = table.goal is goals.mapped and any(row.direct[0] for row in found)
    seen = f" (one way {min(ns)} to {max(ns)} ns)" if ns else ""
    yield f"{op}, {ranks} ranks, {state} cores{seen}, us:"
    yield ""
    head = ["bytes", *names, *([PRIVATE_BARE] * bare), *([MAPPED_BARE] * mapped)]
    head += ["float32 / 16 bits" if half else "best peer / ours"]
    head += ["bare / ours"] * (bare or mapped) + ["goal: at most"]
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in found:
        shown = [name for name in names if not half or name in ("isthmus", row.ours)]
        cells = [str(row.bytes)]
        cells += [rows.cell(row.times[n]) if n in row.times and n in shown else "-" for n in names]
        cells += [kernel(row.bare, row.times)] * bare + [kernel(row.direct, row.times)] * mapped
        cells += [ratio(row.best, row.us)]
        cells += [ratio((row.direct if mapped else row.bare)[0], row.us)] * (bare or mapped)
        yield f"| {' | '.join([*cells, row.verdict()])} |"
    asked = [row for row in found if row.met is not None]
    if asked:
        faster = sum(bool(row.best) and row.best >= 1.2 * row.us for row in asked)
        yield ""
        yield (
            f"Goals met in {sum(row.met for row in asked)} of {len(asked)} cells; "
            f"at least 1.2x the best peer in {faster}."
        )


def sections(name, csv):
    """[(key, rows, names of the columns, probes)] of a table's CSV, in order."""
    table = TABLES[name]
    cells, probes = rows.read([csv], 4)
    if table.goal is goals.half:
        cells = scaled(cells)
    order = sorted(cells, key=lambda key: (key[1], rows.OPS.index(key[0]), key[2]))
    for key in order:
        found = list(rows_of(table, key, cells[key]))
        if not found:
            continue
        names = {n for row in found for n in row.times if not n.startswith("bare-")}
        columns = sorted(names, key=lambda n: (n != table.ours, "isthmus" not in n, n))
        yield key, found, columns, probes.get(key[2])


def render(name, csv):
    """Markdown of a table from its CSV."""
    lines = []
    _, probes = rows.read([csv], 4)
    tries = sum(map(len, probes.values()))
    for key, found, columns, ns in sections(name, csv):
        lines += [*markdown(TABLES[name], key, found, columns, ns), ""]
    missing = [state for state in STATES if state not in states_of_ours(name, csv)]
    for state in missing:
        lines += [f"{state.capitalize()} cores: not seen in {tries} probes, not measured.", ""]
    return "\n".join(lines)


def plot(name, csv):
    """TABLE.svg beside the CSV: time over size, one panel for each operation, ranks and state."""
    try:
        import matplotlib
    except ImportError:
        print("compare.py: no matplotlib, no plot", file=sys.stderr)
        return
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = name
    from matplotlib import pyplot

    panels = list(sections(name, csv))
    if not panels:
        return
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(5 * across, 4 * down), squeeze=False, layout="constrained"
    )
    flat = [axis for line in axes for axis in line]
    for axis in flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((op, ranks, state), found, columns, _) in zip(flat, panels, strict=False):
        for column in columns:
            points = sorted(
                {r.bytes: statistics.median(r.times[column]) for r in found if column in r.times}
                .items()
            )
            ours = "isthmus" in column
            axis.plot(*zip(*points, strict=True), label=column, marker=".", lw=2.5 if ours else 1)
        bare = sorted({row.bytes: row.bare[0] for row in found if row.bare[0]}.items())
        if bare:
            axis.plot(*zip(*bare, strict=True), "k--", label=PRIVATE_BARE, lw=1)
        axis.set(xscale="log", yscale="log", xlabel="bytes", ylabel="us")
        axis.set_title(f"{op}, {ranks} ranks, {state}", fontsize=10)
        axis.legend(fontsize=7)
    figure.savefig(csv.with_suffix(".svg"), metadata={"Date": None})
    pyplot.close(figure)


def write(name, text):
    """Puts a table between its marks in docs/performance.md."""
    marks = re.compile(rf"(<!-- compare\.py {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    old = DOCUMENT.read_text()
    if not marks.search(old):
        sys.exit(f"compare.py: {DOCUMENT} has no line '<!-- compare.py {name} -->'")
    picture = f"![{name}](../perf/results/{name}.svg)\n\n"
    shown = picture if (RESULTS / f"{name}.svg").is_file() else ""
    DOCUMENT.write_text(marks.sub(lambda m: f"{m[1]}\n{text}\n{shown}{m[2]}", old))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="see --list; all: every table")
    parser.add_argument("--list", action="store_true", help="the tables")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tries", type=int, default=10, help="to see a core state, with rounds")
    parser.add_argument("--quick", action="store_true", help="one round, to 1 MiB, few repetitions")
    parser.add_argument("--render", action="store_true", help="run nothing: the kept CSV's tables")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of CSV and plots")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md, too")
    args = parser.parse_args()
    if args.list or not args.tables:
        for name, table in TABLES.items():
            print(f"{name:<16} {table.about}")
        return
    names = list(TABLES) if args.tables == ["all"] else args.tables
    for name in names:
        if name not in TABLES:
            parser.error(f"no table {name}; --list names them")
    if args.quick:
        args.rounds = 1
    for name in names:
        csv = args.results / f"{name}.csv"
        if not args.render:
            measure(name, args)
        elif not csv.is_file():
            parser.error(f"{csv} is not there: run without --render first")
        text = render(name, csv)
        print(f"### {name}: {TABLES[name].about}\n\n{text}")
        if not args.no_plot:
            plot(name, csv)
        if args.write:
            write(name, text)


if __name__ == "__main__":
    main()
