"""Failures that users of other libraries met, each as a test of its whole kind.

The numbers are those of the project's case list. Method: functions on 2 to 4 ranks; every call has
a time limit, so a hang is a failure.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import isthmus
from harness import Ranks, held, leaks

# Run on the ranks.


def every_collective(count: int, dtype: torch.dtype) -> None:
    """Each collective once, with ones, on `count` elements a rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ones = torch.ones(count, dtype=dtype)
    whole = torch.ones(size * count, dtype=dtype)
    lists = [torch.ones(count, dtype=dtype) for _ in range(size)]
    dist.all_reduce(ones)
    dist.reduce(ones, 0)
    dist.broadcast(ones, size - 1)
    dist.all_gather(lists, ones)
    dist.all_gather_single(whole, ones)
    dist.reduce_scatter(ones, lists)
    dist.reduce_scatter_single(ones, whole)
    dist.gather(ones, lists if rank == 0 else None, 0)
    dist.scatter(ones, lists if rank == 0 else None, 0)
    dist.all_to_all_single(whole, whole.clone())
    dist.all_to_all(lists, [one.clone() for one in lists])
    assert ones.numel() == count


def nothing_to_move() -> None:
    """O-01: zero elements in every collective; an all-to-all in which some rank sends nothing."""
    rank, size = dist.get_rank(), dist.get_world_size()
    begin = time.monotonic()
    every_collective(0, torch.float32)
    shaped = torch.empty(1, 0, 2)
    dist.all_reduce(shaped)
    dist.broadcast(shaped, 1)
    assert shaped.shape == (1, 0, 2)
    rows = [10 * rank + to for to in range(size) for _ in range(rank)]
    got = torch.empty(sum(range(size)), dtype=torch.int64)
    sent = torch.tensor(rows, dtype=torch.int64)
    dist.all_to_all_single(got, sent, list(range(size)), [rank] * size)
    assert got.tolist() == [10 * r + rank for r in range(size) for _ in range(r)]
    dist.all_reduce(one := torch.ones(1))
    assert one.item() == size
    assert time.monotonic() - begin < 10


def averages() -> None:
    """O-03: the divisor is the number of ranks; a mean that fits is finite; three calls agree."""
    rank = dist.get_rank()
    cases = [
        (torch.full((5,), rank + 1.0), dist.ReduceOp.AVG, [2.5] * 5),
        (torch.tensor([rank, -rank], dtype=torch.int32), dist.ReduceOp.AVG, [1, -1]),
        (torch.full((3,), 60000.0, dtype=torch.float16), dist.ReduceOp.AVG, [60000.0] * 3),
        (torch.full((1,), 2.0 * rank + 1, dtype=torch.bfloat16), dist.ReduceOp.AVG, [4.0]),
        (torch.full((1,), rank + 1.0, dtype=torch.bfloat16),
         dist._make_nccl_premul_sum(0.5), [5.0]),
    ]
    for own, op, wanted in cases:
        dist.all_reduce(everywhere := own.clone(), op)
        dist.reduce(at_root := own.clone(), 0, op)
        dist.reduce_scatter_single(part := torch.empty_like(own), own.repeat(4), op)
        assert everywhere.tolist() == wanted, (everywhere, op)
        assert part.tolist() == wanted, (part, op)
        assert rank != 0 or at_root.tolist() == wanted, (at_root, op)


def bits() -> None:
    """O-04, P=3: bit operations are themselves, wide integers are exact."""
    rank = dist.get_rank()
    ops = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
    for op, wanted in zip(ops, (1, 7, 5), strict=True):
        dist.all_reduce(own := torch.tensor([(1, 3, 7)[rank]], dtype=torch.int32), op)
        assert own.item() == wanted
    dist.all_reduce(wide := torch.tensor([(2**53 + 1, 2, 0)[rank]]))
    assert wide.item() == 9007199254740995
    dist.all_reduce(both := torch.tensor([1 + 2j], dtype=torch.complex64))
    assert both.item() == 3 + 6j
    # torch itself refuses the last one: "complex tensors".
    for op, dtype in (("BAND", "float32"), ("AVG", "bool"), ("MAX", "complex64")):
        with pytest.raises((RuntimeError, ValueError), match=f"(?s){op}.*{dtype.rstrip('64')}"):
            dist.all_reduce(torch.ones(2, dtype=getattr(torch, dtype)), getattr(dist.ReduceOp, op))


def truths() -> None:
    """O-04: a bool is 0 or 1 whatever is done to it."""
    for op in ("SUM", "PRODUCT", "MIN", "MAX"):
        dist.all_reduce(own := torch.ones(9, dtype=torch.bool), getattr(dist.ReduceOp, op))
        assert own.view(torch.uint8).tolist() == [1] * 9


def halves() -> None:
    """O-05, P=2: sums of 16-bit floats are rounded once, to nearest even, for every pattern."""
    rank = dist.get_rank()
    for dtype, pairs, wanted in (
        (torch.float16, [(2048, 1), (2050, 1), (65504, 8), (65504, 16), (2**-24, 2**-24)],
         [2048, 2052, 65504, float("inf"), 2**-23]),
        (torch.bfloat16, [(256, 1), (258, 1)], [256, 260]),
    ):
        dist.all_reduce(own := torch.tensor([float(pair[rank]) for pair in pairs]).to(dtype))
        assert own.tolist() == wanted
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
        exact = (every.float() + 1.0).to(dtype)
        dist.all_reduce(own := every.clone() if rank == 0 else torch.ones_like(every))
        same = (own.view(torch.int16) == exact.view(torch.int16)) | (own.isnan() & exact.isnan())
        assert bool(same.all()), own[~same]


def same_bits(one_node: bool) -> str:
    """O-06: one result, on every rank and in every run."""
    count = 300_007
    generator = torch.Generator().manual_seed(dist.get_rank())
    scale = 10.0 ** (torch.arange(count) % 4)
    seen = hashlib.sha256()
    for dtype in (torch.float32, torch.bfloat16):
        held = (torch.randn(count, generator=generator) * scale).to(dtype)
        first = None
        for _ in range(4):
            dist.all_reduce(own := held.clone())
            assert first is None or torch.equal(own, first)
            first = own
        if dtype == torch.bfloat16:
            everyone = [torch.empty_like(held) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, held)
            exact = torch.stack(everyone).double().sum(0)
            # Between nodes the nodes' sums travel in the type itself: three roundings in all.
            largest = exact.abs() if one_node else torch.stack(everyone).double().abs().sum(0)
            spacing = 2.0 ** (largest.clamp_min(2**-126).log2().floor() - 7)
            off = ((first.double() - exact).abs() / spacing).max().item()
            assert off <= (1.0 if one_node else 1.5), off
        seen.update(first.view(torch.int16).numpy().tobytes())
    return seen.hexdigest()


def columns() -> None:
    """O-07: a column of a matrix, as input and as output; what lies beside it stays."""
    rank = dist.get_rank()

    def held() -> torch.Tensor:
        return torch.tensor([[rank + 1, -9], [rank + 5, -9]])

    dist.broadcast((matrix := held())[:, 0], 0)
    assert matrix.tolist() == [[1, -9], [5, -9]]
    dist.reduce((matrix := held())[:, 0], 0)
    assert rank != 0 or matrix.tolist() == [[3, -9], [11, -9]]
    assert matrix[:, 1].tolist() == [-9, -9]
    parts = [torch.tensor([[10 * i, -9], [10 * i + 1, -9]]) for i in range(2)]
    columns = [part[:, 0] for part in parts]
    dist.scatter((matrix := held())[:, 0], columns if rank == 0 else None, 0)
    assert matrix.tolist() == [[10 * rank, -9], [10 * rank + 1, -9]]
    dist.gather(held()[:, 0], columns if rank == 0 else None, 0)
    wanted = [[[1, -9], [5, -9]], [[2, -9], [6, -9]]]
    assert rank != 0 or [part.tolist() for part in parts] == wanted
    dist.all_gather(columns, held()[:, 0])
    assert [part.tolist() for part in parts] == wanted


def strides() -> None:
    """O-08: every second element, one element many times; a destination that overlaps itself."""
    rank = dist.get_rank()
    base = torch.arange(24, dtype=torch.float32) + 100 * rank
    dist.reduce_scatter_single(part := torch.empty(6), base[::2])
    first = 100 + 24 * rank
    assert part.tolist() == [float(first + 4 * i) for i in range(6)]
    dist.reduce_scatter_single(part, torch.tensor([1.5]).expand(12))
    assert part.tolist() == [3.0] * 6
    with pytest.raises(ValueError, match="overlap"):
        dist.all_reduce(torch.ones(1).expand(5))
    dist.all_reduce(one := torch.ones(1))
    assert one.item() == 2.0


def odd_one_out() -> list[str]:
    """O-09: one rank has another size; all are told, with both sizes, and the group goes on."""
    rank, texts = dist.get_rank(), []
    for common, odd in ((409598, 409600), (2, 1)):
        begin = time.monotonic()
        with pytest.raises(RuntimeError) as raised:
            dist.all_reduce(torch.ones(odd if rank == 0 else common))
        assert time.monotonic() - begin < 5
        text = str(raised.value)
        assert "all_reduce #" in text and str(common) in text and str(odd) in text, text
        texts.append(text)
    dist.all_reduce(one := torch.ones(1))
    assert one.item() == dist.get_world_size()
    return texts


def limits() -> None:
    """O-12: the last limit set is in force, the call's own, the parent's; long ones hold."""
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()

    def late(group: dist.ProcessGroup, limit_s: float, name: str, call) -> None:
        """Rank 1 stays away: rank 0 fails at the limit, which is in the text."""
        if rank == 1:
            store.wait([name])
            return
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match=f"{round(limit_s * 1000)} ms"):
            call(group)
        store.set(name, "1")
        assert limit_s <= time.monotonic() - begin < limit_s + 1

    changed = dist.new_group(timeout=timedelta(seconds=60))
    # torch's own _set_pg_timeout reaches backends of its own only.
    changed._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=1))
    late(changed, 1.0, "changed", lambda group: dist.all_reduce(torch.ones(1), group=group))

    def soon(group: dist.ProcessGroup) -> None:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.5)
        group.allreduce([torch.ones(1)], options).wait()

    late(dist.new_group(), 0.5, "soon", soon)
    long = dist.new_group(timeout=timedelta(days=36500))
    if rank == 1:
        time.sleep(1)
    dist.all_reduce(one := torch.ones(1), group=long)
    assert one.item() == 2.0


def many_groups() -> float:
    """O-14: groups made and destroyed leave nothing behind, and many may live together."""
    size, marks = dist.get_world_size(), []
    for i in range(200):
        group = dist.new_group()
        dist.all_reduce(one := torch.ones(1), group=group)
        assert one.item() == size
        dist.destroy_process_group(group)
        if i in (50, 199):
            marks.append(held())
    assert not leaks(*marks), marks
    alive = [dist.new_group() for _ in range(100)]
    for group in alive:
        dist.all_reduce(one := torch.ones(1), group=group)
        assert one.item() == size
    return marks[1]["files"]


def members_only(rounds: int) -> None:
    """O-15: disjoint groups, each made by its members alone, at different times."""
    rank = dist.get_rank()
    mine = [0, 3] if rank in (0, 3) else [1, 2]
    draw = random.Random(rank)
    for _ in range(rounds):
        time.sleep(draw.random() * 0.02)
        group = dist.new_group(mine, use_local_synchronization=True)
        dist.all_reduce(own := torch.tensor([(rank + 1.0) ** 2]), group=group)
        assert own.item() == (17.0 if rank in (0, 3) else 13.0)
        dist.destroy_process_group(group)


def threads_on_groups(calls: int, shared: bool) -> None:
    """O-34: four threads, on one group with a tag each, or on a group each."""
    groups = [dist.new_group() for _ in range(4)]
    failed: list[BaseException] = []

    def gathers(k: int, group: dist.ProcessGroup) -> None:
        draw = random.Random(10 * k + dist.get_rank())
        for i in range(calls):
            if draw.random() < 0.05:
                time.sleep(draw.random() * 0.002)
            count = 1 + (i * 7 + k) % 64
            got = [torch.empty(count) for _ in range(2)]
            dist.all_gather(got, torch.full((count,), k + 10.0 * dist.get_rank()), group=group)
            assert [one.tolist() for one in got] == [[float(k)] * count, [k + 10.0] * count]

    def thread(k: int) -> None:
        try:
            if shared:
                with isthmus.tag(k + 1):
                    gathers(k, groups[0])
            else:
                gathers(k, groups[k])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=thread, args=(k,)) for k in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed, failed


@pytest.mark.parametrize(
    ("size", "function", "arguments"),
    [
        (4, "nothing_to_move", []),
        (4, "averages", []),
        (3, "bits", []),
        (4, "truths", []),
        (2, "halves", []),
        (2, "columns", []),
        (2, "strides", []),
        (2, "limits", []),
        (4, "many_groups", []),
        (4, "members_only", [20]),
        (2, "threads_on_groups", [100, True]),
        (2, "threads_on_groups", [100, False]),
    ],
)
def test_case(pool, size, function, arguments):
    pool(size).call(__file__, function, *arguments)


@pytest.mark.parametrize("nodes", ["aaaa", "aabb"])
def test_same_bits_everywhere(nodes):
    digests = []
    for _ in range(2):
        with Ranks(4, nodes=nodes) as ranks:
            digests += ranks.call(__file__, "same_bits", nodes == "aaaa")
    assert len(set(digests)) == 1, digests


@pytest.mark.parametrize("nodes", ["aaaa", "aabb"])
def test_the_odd_rank_is_named(pool, nodes):
    texts = pool(4, nodes if nodes != "aaaa" else "").call(__file__, "odd_one_out")
    # Of two ranks on a node neither is the odd one; the other node hears of it only.
    wanted = "rank 0 differs" if nodes == "aaaa" else "rank 0 called"
    assert all(wanted in text for text in texts[0]), texts[0]
