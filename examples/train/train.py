#!/usr/bin/env python3
"""Trains a byte-level GPT: alone (`reference`) or as one rank of several (`worker`, by torchrun).

run.sh starts both. The reference writes the loss of every step; the workers train the same model
on the same global batches with FSDP2, and stop with an error at the first loss that is not the
reference's. What a run measured goes to DIR/NAME.json, from which report.py draws its picture.
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import pathlib
import signal
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from tqdm import tqdm

import corpus as corpora
import gpt
import loss_check
import meter as meters

SEED = 1729
PEAK_RATE = 1e-3
WARM_UP_STEPS = 20
LINE_EVERY_STEPS = 10
PROMPT = "\ndef "
CHARACTERS = 200


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run of a job: its name, the sharding (`flat` or `hsdp`) and its steps."""

    name: str
    layout: str
    steps: int

    @staticmethod
    def parse(text):
        name, layout, steps = text.split(":")
        if layout not in ("flat", "hsdp") or int(steps) < 1:
            raise argparse.ArgumentTypeError(f"expected NAME:flat|hsdp:STEPS, got {text!r}")
        return Run(name, layout, int(steps))


class Progress:
    """A bar on a terminal, and every few steps a line, for the rank that prints."""

    def __init__(self, title, steps, quiet=False):
        terminal = sys.stderr.isatty()
        self.bar = tqdm(total=steps, desc=title, unit="step", disable=quiet, dynamic_ncols=True,
                        mininterval=0.2 if terminal else 10)
        self.steps = steps

    def show(self, step, text, line):
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update()
        if not self.bar.disable and (step % LINE_EVERY_STEPS == 0 or step in (1, self.steps)):
            self.bar.write(f"step {step:4}  {line}", file=sys.stderr)

    def close(self):
        self.bar.close()


def learning_rate(step, total):
    """Warms up in a straight line, then falls to a tenth along half a cosine; steps from 1."""
    fall = 0.55 + 0.45 * math.cos(math.pi * (step - 1) / total)
    return PEAK_RATE * min(1.0, step / WARM_UP_STEPS) * fall


def optimizer_of(model):
    # The large eps keeps rounding noise in a gradient near zero from turning into a full step.
    return torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), eps=1e-6,
                             weight_decay=0.01, foreach=True)


def train_step(model, optimizer, rows, rate):
    """One update; returns the loss of these rows."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = gpt.loss_of(model, rows)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.double().item()


def write_json(path, content):
    """Whole or not at all: a reader never sees half a file."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


def reference(options):
    """Trains in this process alone, on whole batches, and writes the loss of every step."""
    torch.set_num_threads(options.threads)
    shape = gpt.SHAPES[options.size]
    corpus = corpora.load(shape.held_out_bytes)
    model = gpt.GPT(shape, SEED)
    optimizer = optimizer_of(model)
    progress = Progress("single process", options.steps)
    losses, seconds = [], []
    for step in range(1, options.steps + 1):
        begin = time.perf_counter()
        rows = corpus.batch(step, SEED, shape)
        loss = train_step(model, optimizer, rows, learning_rate(step, options.steps))
        seconds.append(time.perf_counter() - begin)
        losses.append(loss)
        progress.show(step, f"loss {loss:.4f}", f"loss {loss:.7f}")
    progress.close()
    write_json(options.out / "reference.json", {
        "losses": losses, "step_seconds": seconds, "threads": options.threads,
        "parameters": sum(p.numel() for p in model.parameters()),
        "shape": dataclasses.asdict(shape), "corpus": corpus.describe(),
        "gzip_bits_per_byte": corpora.gzip_bits_per_byte(corpus.held_out)})


class Worker:
    """One rank of a job. Verdicts and measurements travel through the launcher's store, so that
    a wrong backend cannot vouch for itself."""

    def __init__(self, options):
        self.options = options
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.shape = gpt.SHAPES[options.size]
        self.corpus = corpora.load(self.shape.held_out_bytes)
        self.reference = json.loads((options.out / "reference.json").read_text())
        if self.corpus.sha256 != self.reference["corpus"]["sha256"]:
            raise SystemExit("the corpus is not the one the single-process run was trained on")
        limit = datetime.timedelta(seconds=options.time_limit)
        self.store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]),
                                   is_master=False, timeout=limit)
        dist.init_process_group(options.backend, timeout=limit)

    def prints(self):
        return self.rank == 0

    def rows(self, step):
        """This rank's share of a step's global batch."""
        each = self.shape.batch // self.world
        batch = self.corpus.batch(step, SEED, self.shape)
        return batch[self.rank * each:(self.rank + 1) * each]

    def model(self, layout):
        """The reference's model, sharded over all ranks, or in each node and copied across."""
        if layout == "hsdp":
            mesh = init_device_mesh("cpu", (2, self.world // 2),
                                    mesh_dim_names=("replicate", "shard"))
        else:
            mesh = init_device_mesh("cpu", (self.world,), mesh_dim_names=("shard",))
        model = gpt.GPT(self.shape, SEED)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def gather(self, key, value=None):
        """Leaves a value for rank 0, which gets the list of every rank's."""
        self.store.set(f"{key}/{self.rank}", json.dumps(value))
        if not self.prints():
            return []
        return self.fetch(key)

    def fetch(self, key):
        return [json.loads(text)
                for text in self.store.multi_get([f"{key}/{rank}" for rank in range(self.world)])]

    def mean_loss(self, run, step):
        """The global batch's loss in float64, once every rank has left its own."""
        return statistics.fmean(self.fetch(f"{run.name}/loss/{step}"))

    def train(self, run):
        """Trains, checks every loss, and writes what was measured."""
        model = self.model(run.layout)
        optimizer = optimizer_of(model)
        progress = Progress(f"{self.options.backend} {run.layout}", run.steps,
                            quiet=not self.prints())
        record = {"losses": [], "differences": []}
        seconds, exposed = [], []
        self.arm(model)
        with meters.CommunicationMeter() as meter:
            dist.barrier()
            sent = meters.neck_bytes_sent()
            meter.take()
            for step in range(1, run.steps + 1):
                begin = time.perf_counter()
                self.step = step
                # The rate follows the reference's schedule, also in a run of fewer steps.
                loss = train_step(model, optimizer, self.rows(step),
                                  learning_rate(step, len(self.reference["losses"])))
                seconds.append(time.perf_counter() - begin)
                exposed.append(meter.take())
                self.store.set(f"{run.name}/loss/{step}/{self.rank}", json.dumps(loss))
                # One step late: every rank has left that loss, so that nobody waits for it.
                self.judge(run, step - 1, record, progress)
            self.judge(run, run.steps, record, progress)
            sent = meters.neck_bytes_sent() - sent
            progress.close()
        ranks = self.gather(f"{run.name}/measured", {
            "step_seconds": seconds, "exposed_seconds": exposed, "sent_bytes": sent,
            "interface": meters.neck_interface(), "calls": meter.calls,
            "node": int(os.environ.get("GROUP_RANK", 0))})
        if self.prints():
            record.update(backend=self.options.backend, layout=run.layout, steps=run.steps,
                          threads=self.options.threads, ranks=ranks)
        return model, record

    def judge(self, run, step, record, progress):
        """On rank 0: compares a step's loss with the single-process run's, and shows both."""
        if not self.prints() or step < 1:
            return
        loss, single = self.mean_loss(run, step), self.reference["losses"][step - 1]
        off = loss_check.check(step, loss, single)
        record["losses"].append(loss)
        record["differences"].append(off)
        progress.show(step, f"loss {loss:.4f}, single {single:.4f}",
                      f"loss {loss:.7f}  single process {single:.7f}  difference {off:.1e}")

    def finish(self, run, model, record):
        """Scores the held-out text and writes a few lines with the whole model, on each rank."""
        whole = gpt.GPT(self.shape, SEED)
        whole.load_state_dict({name: parameter.full_tensor().detach()
                               for name, parameter in model.named_parameters()})
        scores = self.gather(f"{run.name}/nats", gpt.nats_of(whole, self.corpus.held_out,
                                                             self.rank, self.world))
        if self.prints():
            nats, scored = map(sum, zip(*scores))
            record["bits_per_byte"] = nats / scored / math.log(2)
            record["generated"] = gpt.generate(whole, PROMPT, CHARACTERS, SEED)

    def arm(self, model):
        """Where asked for, this rank dies in the middle of a backward pass."""
        if self.rank != self.options.kill_rank:
            return

        def die(_):
            write_json(self.options.out / "killed.json", {"at": time.monotonic()})
            os.kill(os.getpid(), signal.SIGKILL)

        def armed(_module, _inputs, output):
            if self.step == self.options.kill_step:
                output.register_hook(die)

        model.blocks[len(model.blocks) // 2].register_forward_hook(armed)

    def all_runs(self):
        for run in self.options.runs:
            model, record = self.train(run)
            if self.options.finish:
                self.finish(run, model, record)
            if self.prints():
                write_json(self.options.out / f"{run.name}.json", record)
        dist.destroy_process_group()


def worker(options):
    if options.kill_rank is None:
        try:
            Worker(options).all_runs()
        except loss_check.LossMismatch as error:
            (options.out / "failure").write_text(f"{error}\n")
            raise SystemExit(1) from None
        return
    # The launcher ends a node's ranks when one of them has died; these still have to say why.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        Worker(options).all_runs()
    except Exception as error:  # whatever the backend raises is what a user would read
        write_json(options.out / f"survivor-{os.environ['RANK']}.json",
                   {"at": time.monotonic(), "kind": type(error).__name__, "text": str(error)})
        raise SystemExit(1) from None


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=("reference", "worker"))
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--size", choices=gpt.SHAPES, default="full")
    parser.add_argument("--threads", type=int, default=1, help="of this process")
    parser.add_argument("--steps", type=int, default=150, help="of the reference")
    parser.add_argument("--backend", default="isthmus")
    parser.add_argument("--runs", type=Run.parse, nargs="+", default=[],
                        metavar="NAME:LAYOUT:STEPS", help="what the job trains, one by one")
    parser.add_argument("--finish", action="store_true", help="score and generate at the end")
    parser.add_argument("--time-limit", type=int, default=120, help="of a collective, in seconds")
    parser.add_argument("--kill-rank", type=int)
    parser.add_argument("--kill-step", type=int, default=5)
    return parser.parse_args(words)


def main():
    options = arguments(sys.argv[1:])
    (reference if options.role == "reference" else worker)(options)


if __name__ == "__main__":
    main()
