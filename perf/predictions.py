#!/usr/bin/env python3
"""How far `isthmus schedule simulate` is off between nodes: its time beside the measured one.

    perf/predictions.py [--shapes 2x1,2x2,3x2,4x1] [--rates 1gbit,4gbit] [--json FILE]

For every rate and shape (nodes x ranks of a node) a lab of network namespaces is made
(tests/labs/netlab). Its ranks write their topology with what a message costs (`isthmus info
--save`), then all_reduce_perf measures sizes from 64 KiB to 16 MiB, and the algorithm that it names
is simulated on that topology. The table has one row a point; the last line has the median of the
deviations, |predicted / measured - 1|. The programs are those of the installed package, or of
--programs FOLDER (perf/ and tools/isthmus/ below it). Nothing else should run meanwhile.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_S = 300
INSIDE = """
source "$1/tests/labs/launch.sh"
launch "$2" "$3" 60 "$6" info --save "$4/topology.json" >&2 || exit 1
for round in $(seq "$8"); do
  launch "$2" "$3" 120 "$5" -b 64K -e 16M -f 2 -n "$7" -w 2 -c 0 --json "$4/rows.$round" >&2 \
    || exit 1
done
"""


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="2x1,2x2,3x2,4x1")
    parser.add_argument("--rates", default="1gbit,4gbit", help="of each node's link, as for tbf")
    parser.add_argument("--iterations", type=int, default=5, help="of a size and round (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="their median counts (default 3)")
    parser.add_argument("--programs", type=pathlib.Path, help="a build folder, e.g. build/dev")
    parser.add_argument("--json", metavar="FILE", help="every point, for programs")
    return parser.parse_args()


def programs_of(options):
    """all_reduce_perf and isthmus."""
    if options.programs:
        build = options.programs.resolve()
        return str(build / "perf/all_reduce_perf"), str(build / "tools/isthmus/isthmus")
    folder = pathlib.Path(sys.executable).parent
    return str(folder / "all_reduce_perf"), str(folder / "isthmus")


def measure(options, shape, rate, folder):
    """(bytes, algorithm) to the median time in us, out of place."""
    perf, isthmus = programs_of(options)
    nodes, locals_ = shape.split("x")
    lab = {"NETLAB_NAME": f"pr{os.getpid()}"}
    subprocess.run(
        [ROOT / "tests/labs/netlab", "with", nodes, "--rate", rate, "--", "bash", "-c", INSIDE,
         "inside", ROOT, nodes, locals_, folder, perf, isthmus, str(options.iterations),
         str(options.rounds)],
        env=os.environ | lab, check=True, timeout=LIMIT_S * options.rounds, stdout=sys.stderr,
    )
    times = {}
    for path in sorted(pathlib.Path(folder).glob("rows.*")):
        for row in json.loads(path.read_text())["rows"]:
            if not row["inplace"]:
                times.setdefault((row["bytes"], row["algorithm"]), []).append(row["time_us"])
    return {key: statistics.median(values) for key, values in times.items()}


def predict(options, folder, size, algorithm):
    """Simulated us."""
    command = [programs_of(options)[1], "schedule", "simulate", "all_reduce", "--json", "--bytes",
               str(size), "--algorithm", algorithm, "--topology", f"{folder}/topology.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return json.loads(done.stdout)["time_us"]


def main():
    options = parse()
    points = []
    print("rate | nodes x ranks | bytes | algorithm | measured, us | predicted, us | off")
    for rate in options.rates.split(","):
        for shape in options.shapes.split(","):
            with tempfile.TemporaryDirectory() as folder:
                for (size, algorithm), us in sorted(measure(options, shape, rate, folder).items()):
                    told = predict(options, folder, size, algorithm)
                    points.append({"rate": rate, "shape": shape, "bytes": size,
                                   "algorithm": algorithm, "measured_us": us,
                                   "predicted_us": told})
                    print(f"{rate} | {shape} | {size} | {algorithm} | {us:.0f} | {told:.0f} | "
                          f"{100 * (told / us - 1):+.1f} %", flush=True)
    off = [abs(point["predicted_us"] / point["measured_us"] - 1) for point in points]
    print(f"{len(points)} points, median deviation {100 * statistics.median(off):.1f} %, "
          f"largest {100 * max(off):.1f} %")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(points, indent=1) + "\n")


if __name__ == "__main__":
    main()
