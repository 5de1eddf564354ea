#!/usr/bin/env python3
"""Soak: random collectives on random groups, every result checked; or ranks killed among them.

    soak.py [--seconds 120] [--seed N] [--ranks 4] [--nodes aabb] [--kills N]

All ranks draw the same sequence from the seed: operation, type, size, reduction, group, whether it
is waited for at once. Values are small integers, exact in every type and order of summation. Groups
are made and destroyed on the way. The seconds count from when the ranks have met. With --kills, N
jobs run one after the other and in each a rank is killed at a random time: every survivor must name
it soon. A failure prints the round that, with the seed, repeats it.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from harness import Ranks  # noqa: E402
from test_ops import MOVED, REDUCED, equal, reduced, value  # noqa: E402

_ROUND = 300  # operations between two looks at the clock
_ROUND_LIMIT_S = 300
_PENDING_MOST = 6
_GROUPS = 5  # alive at once, beside the group of all
# From the kill on; a survivor first checks the large results it has at hand, a second's work.
_NAMED_WITHIN_S = 5.0
# Survivors of a kill end their round at its next operation with the victim, or at its end.
_JOB_LIMIT_S = 60

# Run on the ranks.


class Soak:
    """One round's draws and what is still under way; the same draws on all ranks."""

    def __init__(self, seed: int, groups: list[tuple[list[int], object]]) -> None:
        self.draw = random.Random(seed)
        self.groups = groups
        self.pending: list[tuple[object, object]] = []
        self.counts: dict[str, int] = {}

    def count(self) -> int:
        """Mostly small; at times beyond what is staged at once."""
        if self.draw.random() < 0.01:
            return self.draw.randrange(1 << 20, 1 << 21)
        return int(2 ** (self.draw.random() * 17)) - 1

    def renew_group(self) -> None:
        """Takes a group away and makes another, which all ranks do alike."""
        self.finish(0)
        if len(self.groups) > _GROUPS:
            _, old = self.groups.pop(self.draw.randrange(1, len(self.groups)))
            if old is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(old)
        ranks = list(range(dist.get_world_size()))
        members = sorted(self.draw.sample(ranks, self.draw.randint(2, len(ranks))))
        self.groups.append((members, dist.new_group(members)))

    def finish(self, most: int) -> None:
        """Waits for the oldest works and checks them until at most so many are under way."""
        while len(self.pending) > most:
            work, check = self.pending.pop(0)
            work.wait()
            check()

    def step(self, salt: int) -> None:
        if len(self.groups) <= _GROUPS or self.draw.random() < 0.01:
            self.renew_group()
        members, group = self.draw.choice(self.groups)
        names = sorted(_OPS)
        name = self.draw.choice(names)
        dtype = getattr(torch, self.draw.choice(REDUCED if name in _REDUCING else MOVED))
        count = self.count()
        root = self.draw.randrange(len(members))
        op = self.draw.choice(("SUM", "PRODUCT", "MIN", "MAX"))
        later = self.draw.random() < 0.4
        self.counts[name] = self.counts.get(name, 0) + 1
        if dist.get_rank() not in members:
            return
        call = Call(members, group, dtype, count, members[root], op, salt)
        work, check = _OPS[name](call)
        check = call.named(name, check)
        if later:
            self.pending.append((work, check))
            self.finish(_PENDING_MOST)
        else:
            work.wait()
            check()


class Call:
    """The arguments of one operation, and what each member holds."""

    def __init__(self, members, group, dtype, count, root, op, salt) -> None:
        self.members, self.group, self.dtype = members, group, dtype
        self.count, self.root, self.op, self.salt = count, root, op, salt
        self.mine = members.index(dist.get_rank())

    def named(self, name: str, check):
        """The check, whose failure says of what."""

        def checked() -> None:
            try:
                check()
            except AssertionError as error:
                dtype = str(self.dtype).removeprefix("torch.")
                raise AssertionError(
                    f"{name} of {dtype}[{self.count}] {self.op} on member {self.mine} of "
                    f"{self.members}, root {self.root}, operation {self.salt} of the soak: {error}"
                ) from error

        return checked

    def held(self, member: int, blocks: int = 1) -> torch.Tensor:
        return value(member + self.salt, self.count * blocks, self.dtype)

    def all_held(self, blocks: int = 1) -> list[torch.Tensor]:
        return [self.held(member, blocks) for member in range(len(self.members))]

    def part(self, whole: torch.Tensor, member: int) -> torch.Tensor:
        return whole[member * self.count : (member + 1) * self.count]

    def empty(self, blocks: int = 1) -> torch.Tensor:
        return torch.empty(self.count * blocks, dtype=self.dtype)

    @property
    def how(self) -> dict[str, object]:
        return {"group": self.group, "async_op": True}

    @property
    def reduction(self) -> object:
        return getattr(dist.ReduceOp, self.op)


def all_reduce(call):
    tensor = call.held(call.mine)
    work = dist.all_reduce(tensor, call.reduction, **call.how)
    return work, lambda: equal(tensor, reduced(call.op, call.all_held()))


def reduce(call):
    tensor = call.held(call.mine)
    work = dist.reduce(tensor, call.root, call.reduction, **call.how)
    at_root = call.members[call.mine] == call.root
    return work, lambda: equal(
        tensor, reduced(call.op, call.all_held()) if at_root else call.held(call.mine))


def reduce_scatter(call):
    size = len(call.members)
    output, whole = call.empty(), call.held(call.mine, size)
    work = dist.reduce_scatter_single(output, whole, call.reduction, **call.how)
    return work, lambda: equal(
        output, call.part(reduced(call.op, call.all_held(size)), call.mine).contiguous())


def all_gather(call):
    output, tensor = call.empty(len(call.members)), call.held(call.mine)
    work = dist.all_gather_single(output, tensor, **call.how)
    return work, lambda: equal(output, torch.cat(call.all_held()))


def broadcast(call):
    tensor = call.held(call.mine)
    work = dist.broadcast(tensor, call.root, **call.how)
    return work, lambda: equal(tensor, call.held(call.members.index(call.root)))


def gather(call):
    at_root = call.members[call.mine] == call.root
    outputs = [call.empty() for _ in call.members] if at_root else None
    tensor = call.held(call.mine)
    work = dist.gather(tensor, outputs, call.root, **call.how)

    def check() -> None:
        for got, wanted in zip(outputs or [], call.all_held() if at_root else [], strict=True):
            equal(got, wanted)

    return work, check


def scatter(call):
    at_root = call.members[call.mine] == call.root
    inputs = call.all_held() if at_root else None
    output = call.empty()
    work = dist.scatter(output, inputs, call.root, **call.how)
    return work, lambda: equal(output, call.held(call.mine))


def all_to_all(call):
    size = len(call.members)
    output, whole = call.empty(size), call.held(call.mine, size)
    work = dist.all_to_all_single(output, whole, **call.how)
    return work, lambda: equal(
        output, torch.cat([call.part(other, call.mine) for other in call.all_held(size)]))


def exchange(call):
    """Each sends to the next and receives from the one before, by a tag of this call's own."""
    size = len(call.members)
    after, before = call.members[(call.mine + 1) % size], call.members[call.mine - 1]
    output, tensor = call.empty(), call.held(call.mine)
    receive = dist.irecv(output, before, group=call.group, tag=call.salt % 1000)
    send = dist.isend(tensor, after, group=call.group, tag=call.salt % 1000)

    def check() -> None:
        send.wait()
        equal(output, call.held((call.mine - 1) % size))

    return receive, check


def barrier(call):
    return dist.barrier(**call.how), lambda: None


_OPS = {
    "all_reduce": all_reduce,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "broadcast": broadcast,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
    "exchange": exchange,
    "barrier": barrier,
}
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")

_groups: list[tuple[list[int], object]] = []


def round_of(seed: int, index: int, operations: int) -> dict[str, int]:
    """Runs the round and returns how often it drew what; groups are kept for the next."""
    if not _groups:
        _groups.append((list(range(dist.get_world_size())), dist.group.WORLD))
    soak = Soak(seed * 1_000_003 + index, _groups)
    for turn in range(operations):
        soak.step(1 + index * operations + turn)
    soak.finish(0)
    return soak.counts


def until_killed(seed: int) -> dict[str, object]:
    """Rounds until an operation fails; the rank then leaves all groups."""
    try:
        for index in range(1_000_000):
            round_of(seed, index, _ROUND)
            dist.barrier()
    except dist.DistBackendError as error:
        found = {"at": time.time(), "text": str(error)}
        # As a program ends that does not catch it: the ranks of other groups hear of it so.
        dist.destroy_process_group()
        return found
    raise AssertionError("nobody was killed")


# The parent.


def soak(args: argparse.Namespace) -> None:
    totals: dict[str, int] = {}
    index = 0
    with Ranks(args.ranks, nodes=args.nodes) as ranks:
        end = time.monotonic() + args.seconds
        while index == 0 or time.monotonic() < end:
            counts = ranks.call(__file__, "round_of", args.seed, index, _ROUND,
                                limit_s=_ROUND_LIMIT_S)
            for name, number in counts[0].items():
                totals[name] = totals.get(name, 0) + number
            index += 1
    print(f"soak: {sum(totals.values())} operations in {index} rounds, all right:",
          ", ".join(f"{number} {name}" for name, number in sorted(totals.items())))


def kill_one(args: argparse.Namespace, index: int) -> None:
    """One job in which one rank dies at a random point."""
    draw = random.Random(args.seed * 1_000_003 + index)
    victim, after_s = draw.randrange(args.ranks), draw.uniform(0.05, 2.0)
    with Ranks(args.ranks, nodes=args.nodes) as ranks:
        ranks.start(__file__, "until_killed", args.seed + index)
        lost = ranks.ranks[victim].receive(time.monotonic() + after_s)
        assert lost.get("lost") == "no answer in time", lost
        killed_at = time.time()
        ranks.ranks[victim].kill()
        for rank, reply in enumerate(ranks.replies(_JOB_LIMIT_S)):
            if rank == victim:
                continue
            if "value" not in reply:
                ranks.ranks[rank].kill(signal.SIGABRT)  # it then writes where it stands
                ranks.ranks[rank].process.wait()
                raise AssertionError((index, rank, victim, reply, ranks.ranks[rank].written()))
            took = reply["value"]["at"] - killed_at
            assert f"rank {victim}" in reply["value"]["text"], (index, rank, reply)
            assert took < _NAMED_WITHIN_S, (index, rank, took, reply)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nodes", default="", help="a letter a rank, equal on one node (aabb)")
    parser.add_argument("--kills", type=int, default=0, help="jobs with a killed rank, no soak")
    args = parser.parse_args()
    print(f"soak: seed {args.seed}, {args.ranks} ranks, nodes '{args.nodes}'", flush=True)
    if args.kills == 0:
        soak(args)
        return 0
    for index in range(args.kills):
        kill_one(args, index)
    print(f"soak: {args.kills} ranks were killed, each was named in time by every survivor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
