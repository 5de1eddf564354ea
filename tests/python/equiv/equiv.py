"""Training on several ranks gives what one process gives on the same global batch.

    torchrun --nproc-per-node 4 equiv.py --backend isthmus [--cases ddp,fsdp2] [--size tiny]

A case passes when every step's global loss and every parameter are within a bound of the reference
(parameters relative to how far training moved them), all ranks hold the same bits, and a second run
gives the same bits again. The control without communication passes only if its loss is off. Exit
status 1 when any case fails.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.distributed as dist

from engines import ENGINES
from model import RANK, SHAPES, SIZE, Exchange, Shape, batch, build, digest, start
from strategies import STRATEGIES, Local, Single, SingleClip, full_parameters

_CASES: dict[str, type[Local]] = {**STRATEGIES, **ENGINES}
# These need an even number of ranks, four or more.
_NEEDS_FOUR = {"hsdp", "fsdp1_hybrid", "fsdp1_hybrid2"}

_LOSS_BOUND = 2e-6
_PARAMETER_BOUND = 1e-3
# Cases that lose bits on purpose: bounds of loss and parameters.
_LOSSY: dict[str, tuple[float, float]] = {
    "ddp_bf16": (1e-4, 3e-2),
    "ddp_fp16": (1e-5, 5e-3),
    "ddp_powersgd": (2e-1, math.inf),
    "fsdp2_bf16": (1e-3, 1e-1),
}
# The control must miss by this factor at least.
_CONTROL_FACTOR = 100
# Parameters that hardly move are measured against this part of the largest move.
_MOVE_FLOOR = 0.01


def fits(name: str) -> bool:
    return name not in _NEEDS_FOUR or (SIZE >= 4 and SIZE % 2 == 0)


def worst(errors: Iterable[float]) -> float:
    """The largest; anything that is not finite counts as infinite."""
    listed = list(errors)
    return max(listed) if all(map(math.isfinite, listed)) else math.inf


class Reference:
    """What one process comes to: losses, parameters, and how far each of these moved."""

    def __init__(self, judge: Judge, kind: type[Local], shape: Shape) -> None:
        before = full_parameters(build(shape))
        trained, self.losses, _ = judge.train(kind, shape)
        self.parameters = trained.parameters()
        moves = {k: (self.parameters[k] - before[k]).abs().max().item() for k in before}
        floor = max(moves.values()) * _MOVE_FLOOR
        self.moves = {name: max(move, floor) for name, move in moves.items()}

    def error(self, parameters: dict[str, torch.Tensor]) -> float:
        """The worst difference, relative to the move."""
        return worst(
            (parameters[k] - self.parameters[k]).abs().max().item() / self.moves[k]
            for k in parameters
        )

    def loss_error(self, losses: list[float]) -> float:
        return worst(abs(a - b) / abs(b) for a, b in zip(losses, self.losses, strict=True))


class Judge:
    """Runs cases and compares them with the reference."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.shape = SHAPES[args.size]
        self.exchange = Exchange(9 * args.timeout + 60)
        self.references: dict[tuple[bool, Shape], Reference] = {}
        self.local_s = math.nan

    def reference(self, clips: bool, shape: Shape) -> Reference:
        key = (clips, shape)
        if key not in self.references:
            self.references[key] = Reference(self, SingleClip if clips else Single, shape)
        return self.references[key]

    def train(
        self, kind: type[Local], shape: Shape
    ) -> tuple[Local, list[float | None], float]:
        """The trained case, its local losses and its median seconds per step."""
        case = kind(self.args.size, build(shape))
        count = self.args.batch // case.replicas
        first = count * RANK if case.replicas > 1 else 0
        losses, times = [], []
        for step in range(self.args.steps):
            inputs, targets = batch(self.shape, self.args.batch, step % 2)
            self.exchange(None)
            begin = time.perf_counter()
            part = slice(first, first + count)
            losses.append(case.step(inputs[part], targets[part]))
            times.append(time.perf_counter() - begin)
        return case, losses, statistics.median(times[1:])

    def judge(self, name: str) -> bool:
        kind = _CASES[name]
        shape = replace(self.shape, layers=max(self.shape.layers, kind.layers_least))
        reference = self.reference(kind.clips, shape)
        case, losses, seconds = self.train(kind, shape)
        parameters = case.parameters()
        error = reference.error(parameters)
        bits = digest(parameters.values())
        again = bits
        if self.args.size == "tiny" and not self.args.once:
            again = digest(self.train(kind, shape)[0].parameters().values())
        got = self.exchange((losses, error, bits, again == bits, seconds))
        means = [
            statistics.mean(one[0][i] for one in got if one[0][i] is not None)
            for i in range(self.args.steps)
        ]
        loss_error = reference.loss_error(means)
        error = worst(one[1] for one in got)
        same = name == "local" or not kind.whole or len({one[2] for one in got}) == 1
        repeats = all(one[3] for one in got)
        seconds = max(one[4] for one in got)
        if name == "local":
            self.local_s = seconds
            good = loss_error > _CONTROL_FACTOR * _LOSS_BOUND
        else:
            loss_bound, bound = _LOSSY.get(name, (_LOSS_BOUND, _PARAMETER_BOUND))
            good = loss_error <= loss_bound and error <= bound and same and repeats
        if RANK == 0:
            share = 1 - self.local_s / seconds
            print(
                f"{name:14} {loss_error:9.1e} {error:10.1e} {same!s:>5} {repeats!s:>6} "
                f"{seconds * 1e3:8.1f} {share:6.0%}  {'PASS' if good else 'FAIL'}",
                flush=True,
            )
        return good


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="isthmus")
    parser.add_argument("--cases", default="all", help="names separated by commas")
    parser.add_argument("--without", default="", help="names to leave out of --cases all")
    parser.add_argument("--size", default="tiny", choices=SHAPES)
    parser.add_argument("--once", action="store_true", help="no second run of each case")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8, help="global batch")
    parser.add_argument("--threads", type=int, default=2, help="compute threads over all ranks")
    parser.add_argument("--timeout", type=int, default=60, help="seconds an operation may take")
    return parser.parse_args()


def main() -> int:
    warnings.filterwarnings("ignore")
    args = arguments()
    torch.set_num_threads(max(1, args.threads // SIZE))
    start(args.backend, args.timeout)
    judge = Judge(args)
    names = args.cases.split(",")
    if args.cases == "all":
        names = [name for name in _CASES if name not in args.without.split(",")]
    if RANK == 0:
        print(
            f"{args.backend}, {SIZE} ranks, {args.size}, {args.steps} steps\n"
            f"{'case':14} {'loss diff':>9} {'param diff':>10} {'ranks':>5} {'repeat':>6} "
            f"{'ms/step':>8} {'share':>6}  verdict"
        )
    good = [judge.judge(name) for name in names if fits(name)]
    judge.exchange(None)
    dist.destroy_process_group()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
