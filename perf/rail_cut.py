#!/usr/bin/env python3
"""What a rail that is cut in the middle of an all_reduce costs, beside the rails that are left.

    perf/rail_cut.py [--rate 1gbit] [--mib 256] [--rounds 5]

A lab of two nodes of one rank with two rails (tests/labs/netlab). In a round one all_reduce runs
with both rails, one while rail 1 is cut a third of the way into it, one with rail 0 alone; then the
rail is mended. Every sum is checked. Prints the medians, with half the distance of the extremes,
and by how much the cut operation ends after what one rail alone needs (negative: before it, for
both rails carried its beginning).
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NETLAB = ROOT / "tests/labs/netlab"
LIMIT_S = 600
CASES = ("both rails", "cut", "one rail")


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="1gbit", help="of each rail, as for tbf")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inside", metavar="FOLDER", help=argparse.SUPPRESS)  # this is a rank
    return parser.parse_args()


def until(path):
    while not path.exists():
        time.sleep(0.01)


def run_rank(options):
    """Does what the lab's side asks for: one all_reduce for every file go.N, answered by done.N."""
    import torch
    import torch.distributed as dist

    folder = pathlib.Path(options.inside)
    dist.init_process_group("isthmus")
    rank = dist.get_rank()
    data = torch.empty(options.mib << 18)
    for number in range(1 + len(CASES) * options.rounds):
        data.fill_(rank + number)
        dist.barrier()
        until(folder / f"go.{number}")
        begin = time.perf_counter()
        dist.all_reduce(data)
        took = time.perf_counter() - begin
        assert bool((data == 1 + 2 * number).all()), f"operation {number}: a wrong sum"
        (folder / f"done.{number}.{rank}.part").write_text(repr(took))
        (folder / f"done.{number}.{rank}.part").rename(folder / f"done.{number}.{rank}")
    dist.destroy_process_group()


class Lab:
    """The side that asks for operations and cuts; inside the lab, outside its nodes."""

    def __init__(self, folder):
        self.folder = folder
        self.number = 0

    def operate(self, meanwhile=None):
        """Seconds of one all_reduce, of the slower rank."""
        (self.folder / f"go.{self.number}").touch()
        if meanwhile is not None:
            meanwhile()
        answers = [self.folder / f"done.{self.number}.{rank}" for rank in range(2)]
        for answer in answers:
            until(answer)
        self.number += 1
        return max(float(answer.read_text()) for answer in answers)

    @staticmethod
    def link(state):
        subprocess.run([NETLAB, "link", "0", "1", state], check=True)


def measure(options, folder):
    launch = f'source "{ROOT}/tests/labs/launch.sh"; launch 2 1 {LIMIT_S} "$@"'
    rank = [sys.executable, __file__, "--mib", str(options.mib), "--rounds", str(options.rounds),
            "--inside", str(folder)]
    job = subprocess.Popen(["bash", "-c", launch, "launch", *rank])
    lab, times = Lab(folder), {case: [] for case in CASES}
    lab.operate()  # opens the second rail

    def cut():
        time.sleep(times["both rails"][-1] / 3)
        lab.link("down")

    for _ in range(options.rounds):
        times["both rails"].append(lab.operate())
        times["cut"].append(lab.operate(cut))
        times["one rail"].append(lab.operate())
        lab.link("up")
        time.sleep(6)  # the flow is opened again after 5 s at most
    if job.wait(timeout=60) != 0:
        raise SystemExit("a rank failed")
    return times


def main():
    options = parse()
    if options.inside:
        run_rank(options)
        return
    if "NETLAB_FOLDER" not in os.environ:  # makes the lab, and runs itself again in it
        with tempfile.TemporaryDirectory() as folder:
            lab = {"NETLAB_NAME": f"rc{os.getpid()}", "NETLAB_FOLDER": folder}
            again = [NETLAB, "with", "2", "--rails", "2", "--rate", options.rate, "--",
                     sys.executable, __file__, *sys.argv[1:]]
            sys.exit(subprocess.run(again, env=os.environ | lab, check=False).returncode)
    times = measure(options, pathlib.Path(os.environ["NETLAB_FOLDER"]))
    for case, values in times.items():
        print(f"{case}: {statistics.median(values):.3f} s ±{(max(values) - min(values)) / 2:.3f}")
    late = [cut - one for cut, one in zip(times["cut"], times["one rail"])]
    print(f"the cut operation ends {statistics.median(late):+.3f} s after one rail alone would "
          f"(worst {max(late):+.3f})")


if __name__ == "__main__":
    main()
