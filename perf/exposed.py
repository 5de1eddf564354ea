#!/usr/bin/env python3
"""What communication adds to a training step: a parallel strategy's step less its local step.

    perf/exposed.py [--ranks 2,4] [--cases ddp,ddp_views,fsdp2,hsdp] [--backends a,b]
                    [--nodes 2 --rate 1gbit] [--rounds 5] [--json FILE]

A transformer of 59 million parameters trains on this machine, two compute threads over all ranks.
In a round every backend runs once, in turn: gloo, isthmus as it comes, isthmus with
ISTHMUS_GROUP_MEMORY=1 (isthmus-memory), and torch's own "fake" (nothing), which moves nothing:
what is left then is what the strategy itself costs (DDP copies every gradient into its bucket and
back): no backend can have less, unless gradients are views of the buckets. ISTHMUS_GROUP_MEMORY=1
makes them so; in the case ddp_views every backend has them. isthmus-hybrid is isthmus with
hybrid_shard where the others have FSDP2's own HSDP, for the case hsdp; isthmus-sequence the same
without reductions that go on while backward does. In a run a step without communication and a step
with it take turns, and all ranks begin each together; exposed time is the median of their
differences, of the slowest rank. The table has medians over the rounds with half the distance of
the extremes. With --nodes the ranks are dealt out in blocks to so many network namespaces
(tests/labs/netlab, root only) that a link of --rate joins.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

BACKENDS = {  # shown name: name for torch, variables
    "gloo": ("gloo", {}),
    "isthmus": ("isthmus", {}),
    "isthmus-memory": ("isthmus", {"ISTHMUS_GROUP_MEMORY": "1"}),
    "isthmus-hybrid": ("isthmus", {"EXPOSED_IN_FLIGHT": "2"}),
    "isthmus-sequence": ("isthmus", {"EXPOSED_IN_FLIGHT": "0"}),
    "nothing": ("fake", {}),
}
WIDTH, LAYERS, VOCABULARY, LENGTH, HEAD = 512, 16, 8192, 64, 32
RUN_LIMIT_S = 600
NETLAB = pathlib.Path(__file__).resolve().parent.parent / "tests" / "labs" / "netlab"


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks (default 2,4)")
    parser.add_argument("--cases", default="ddp,ddp_views,fsdp2,hsdp", help="hsdp: from 4 ranks on")
    parser.add_argument("--backends", default="gloo,isthmus,isthmus-memory,nothing",
                        help="the first is what the others are compared with (default %(default)s)")
    parser.add_argument("--nodes", type=int, default=1, help="network namespaces (default 1)")
    parser.add_argument("--rate", help="of the link between them, as 1gbit (default not shaped)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--steps", type=int, default=6, help="of a run, after one that warms up")
    parser.add_argument("--batch", type=int, default=8, help="sequences over all ranks (default 8)")
    parser.add_argument("--json", metavar="FILE", help="every run's figures, for programs")
    parser.add_argument("--backend", help=argparse.SUPPRESS)  # set: this process is a rank
    return parser.parse_args()


def model():
    """The same on every rank."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            heads = [
                part.unflatten(-1, (-1, HEAD)).transpose(1, 2)
                for part in self.qkv(self.before(x)).chunk(3, dim=-1)
            ]
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.between(x))))

    torch.manual_seed(7)
    blocks = [Block() for _ in range(LAYERS)]
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.LayerNorm(WIDTH), head)


def averaged(buffer, ranks):
    import torch

    done = torch.futures.Future()
    done.set_result(buffer.div_(ranks))
    return done


def wrapped(case, ranks):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    bare = model()
    if case.startswith("ddp"):
        views = {"gradient_as_bucket_view": True} if case == "ddp_views" else {}
        ddp = DistributedDataParallel(bare, bucket_cap_mb=4, **views)
        if distributed.get_backend() == "fake":  # has no result to wait for
            ddp.register_comm_hook(None, lambda _, bucket: averaged(bucket.buffer(), ranks))
        return ddp
    sizes, names = ((ranks,), ("shard",))
    if case == "hsdp":
        sizes, names = ((ranks // 2, 2), ("replicate", "shard"))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    shard = functools.partial(fully_shard, mesh=mesh)
    if case == "hsdp" and (in_flight := os.environ.get("EXPOSED_IN_FLIGHT")):
        from isthmus.fsdp import hybrid_shard

        shard = functools.partial(hybrid_shard, mesh=mesh, in_flight=int(in_flight))
    for part in [*bare[1:-2], bare]:
        shard(part)
    return bare


class Trainer:
    def __init__(self, net):
        import torch

        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, foreach=False)

    def step(self, tokens):
        """Seconds of a step."""
        from torch.nn import functional

        begin = time.perf_counter()
        logits = self.net(tokens[:, :-1]).flatten(0, 1)
        functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin


class Meeting:
    """All ranks begin together, by the store: the backend under test has no part in it."""

    def __init__(self, store, ranks):
        self.store, self.ranks, self.count = store, ranks, 0

    def __call__(self):
        self.count += 1
        if self.store.add(f"met/{self.count}", 1) == self.ranks:
            self.store.set(f"met/{self.count}/all", "1")
        self.store.wait([f"met/{self.count}/all"])


def run_rank(options):
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, 2 // ranks))
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, ranks, rank == 0)
    if options.backend == "fake":
        from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers it
    dist.init_process_group(options.backend, store=dist.PrefixStore("group", store), rank=rank,
                            world_size=ranks)
    meet = Meeting(store, ranks)
    draw = torch.Generator().manual_seed(rank)
    tokens = torch.randint(VOCABULARY, (options.batch // ranks, LENGTH + 1), generator=draw)
    found = {}
    for case in options.cases.split(","):
        local, parallel = Trainer(model()), Trainer(wrapped(case, ranks))
        pairs = []
        for index in range(options.steps + 2):
            meet()
            alone = local.step(tokens)
            meet()
            together = parallel.step(tokens)
            if index >= 2:  # DDP rebuilds its buckets before the second step
                pairs.append((alone, together))
        found[case] = {
            "exposed_ms": 1e3 * statistics.median(b - a for a, b in pairs),
            "local_ms": 1e3 * statistics.median(a for a, _ in pairs),
        }
        del local, parallel
    store.set(f"found/{rank}", json.dumps(found))
    meet()
    if rank == 0:
        everyone = [json.loads(store.get(f"found/{other}")) for other in range(ranks)]
        slowest = {
            case: max((one[case] for one in everyone), key=lambda row: row["exposed_ms"])
            for case in found
        }
        print(json.dumps(slowest), flush=True)
    meet()  # rank 0 serves the store
    dist.destroy_process_group()


@contextlib.contextmanager
def lab(options):
    """What runs a rank's command on node I: nothing, or the network lab's exec; and its address."""
    if options.nodes == 1:
        yield lambda _: [], "127.0.0.1", "lo"
        return
    env = os.environ | {"NETLAB_NAME": f"ex{os.getpid()}"}
    rate = ["--rate", options.rate] if options.rate else []
    subprocess.run([NETLAB, "up", str(options.nodes), *rate], env=env, check=True,
                   stdout=subprocess.DEVNULL)
    os.environ |= env
    try:
        hosts = subprocess.run([NETLAB, "hosts"], check=True, capture_output=True, text=True)
        yield (lambda node: [str(NETLAB), "exec", str(node)]), hosts.stdout.split()[0], "rail0"
    finally:
        subprocess.run([NETLAB, "down"], check=False, stdout=subprocess.DEVNULL)


def run_job(options, backend, ranks, cases, place):
    """One run of all cases: what rank 0 printed."""
    name, variables = BACKENDS[backend]
    at, address, interface = place
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--backend", name]
    command += ["--cases", ",".join(cases)]
    command += ["--steps", str(options.steps), "--batch", str(options.batch)]
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": address, "MASTER_PORT": port}
    common |= {"GLOO_SOCKET_IFNAME": interface} | variables
    common["OMP_NUM_THREADS"] = str(max(1, 2 // ranks))
    jobs = [
        subprocess.Popen([*at(rank * options.nodes // ranks), *command], text=True,
                         env=os.environ | common | {"RANK": str(rank)},
                         stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL)
        for rank in range(ranks)
    ]
    try:
        printed = jobs[0].communicate(timeout=RUN_LIMIT_S)[0]
        codes = [job.wait(timeout=60) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    if any(codes):
        raise SystemExit(f"{backend} on {ranks} ranks ended with {codes}")
    return json.loads(printed)


def text_of(values):
    return f"{statistics.median(values):.1f} ±{(max(values) - min(values)) / 2:.1f}"


def compare(options, backends, place):
    """Runs the rounds, prints a table for each number of ranks; every run's figures."""
    runs = []
    for ranks in map(int, options.ranks.split(",")):
        cases = [case for case in options.cases.split(",") if case != "hsdp" or ranks >= 4]
        for number in range(options.rounds):
            for backend in backends:
                if sys.stderr.isatty():
                    print(f"\r{ranks} ranks, round {number + 1} of {options.rounds}: {backend:24}",
                          end="", file=sys.stderr)
                for case, row in run_job(options, backend, ranks, cases, place).items():
                    runs.append({"ranks": ranks, "round": number, "backend": backend,
                                 "case": case} | row)
        print(f"\n{ranks} ranks | " + " | ".join(f"{name}, ms" for name in backends) + " | ratios")
        for case in cases:
            of = {name: [run["exposed_ms"] for run in runs if run["ranks"] == ranks
                         and run["case"] == case and run["backend"] == name] for name in backends}
            ratios = [statistics.median(b / a for a, b in zip(of[backends[0]], of[name]))
                      for name in backends[1:]]
            columns = [case, *map(text_of, of.values()), " ".join(f"{x:.2f}" for x in ratios)]
            print(" | ".join(columns), flush=True)
    return runs


def main():
    options = parse()
    if options.backend:
        run_rank(options)
        return
    backends = options.backends.split(",")
    if unknown := [name for name in backends if name not in BACKENDS]:
        raise SystemExit(f"--backends: {unknown} not known; there are {list(BACKENDS)}")
    with lab(options) as place:
        runs = compare(options, backends, place)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
