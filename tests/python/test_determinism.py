"""Goal: what ISTHMUS_DETERMINISTIC promises holds through torch. Method: 24 fixed tensors spread
over 2, 3 and 4 ranks, on one node, two and four, in shuffled order; one SHA-256 for all. Then what
isthmus.all_reduce_contributions takes and refuses."""

from __future__ import annotations

import hashlib
import random

import pytest
import torch
import torch.distributed as dist
from harness import Ranks

import isthmus

COUNTS = (5, 3000, 200_003)
DTYPES = (torch.float32, torch.bfloat16)


def contributions(dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(24)
    scale = 10.0 ** (torch.arange(count) % 4)
    return [
        (torch.randn(max(COUNTS), generator=generator)[:count] * scale).to(dtype) for _ in range(24)
    ]


def digest(seed: int) -> str:
    """Of all results: the same for every seed and number of ranks."""
    text = hashlib.sha256()
    order = list(range(24))
    random.Random(seed).shuffle(order)
    own = 24 // dist.get_world_size()
    mine = order[dist.get_rank() * own :][:own]
    for dtype in DTYPES:
        for count in COUNTS:
            tensors = contributions(dtype, count)
            output = torch.empty(count, dtype=dtype)
            work = isthmus.all_reduce_contributions(
                output, [tensors[i] for i in mine], async_op=seed % 2 == 1
            )
            if work is not None:
                work.wait()
            text.update(output.view(torch.uint8).numpy().tobytes())
    return text.hexdigest()


def test_one_digest_for_all_layouts() -> None:
    found = set()
    for size, nodes in ((2, ""), (3, "aab"), (4, "abcd")):
        with Ranks(size, nodes=nodes, ISTHMUS_DETERMINISTIC="1") as ranks:
            for seed in (1, 2):
                found.update(ranks.call(__file__, "digest", seed))
    assert len(found) == 1, found


def first_half() -> None:
    """The same elements in a longer message (case O-06), and 16-bit sums near the exact ones."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in DTYPES:
        both = [
            torch.randn(20_006, generator=torch.Generator().manual_seed(r)).to(dtype)
            for r in range(size)
        ]
        long = both[rank].clone()
        short = both[rank][:10_003].clone()
        dist.all_reduce(long)
        dist.all_reduce(short)
        assert torch.equal(long[:10_003].view(torch.uint8), short.view(torch.uint8))
        exact = torch.stack(both).double().sum(0)
        error = (long.double() - exact).abs()
        assert (error <= exact.abs() * torch.finfo(dtype).eps + 1e-6).all()


def test_longer_messages_have_the_same_bits() -> None:
    with Ranks(4, nodes="aabb", ISTHMUS_DETERMINISTIC="1") as ranks:
        ranks.call(__file__, "first_half")


def several() -> None:
    """Without the mode: views, means, the output among the contributions, and refusals."""
    rank = dist.get_rank()
    table = torch.arange(12, dtype=torch.float32).reshape(6, 2) + rank
    output = torch.full((6,), 2.0)
    isthmus.all_reduce_contributions(output, [table[:, 0], table[:, 1], output], dist.ReduceOp.AVG)
    assert torch.equal(output, (torch.arange(6) * 4 + 4) / 3)
    tail = torch.zeros(6, 2)
    isthmus.all_reduce_contributions(tail[:, 1], [torch.ones(6)])
    assert torch.equal(tail, torch.tensor([[0.0, 2.0]]).expand(6, 2))
    for tensors, words in (
        ([], "one tensor or more"),
        ([torch.ones(5)], "sizes do not fit"),
        ([torch.ones(6, dtype=torch.float64)], "tensors of one type"),
    ):
        with pytest.raises(Exception, match=words):
            isthmus.all_reduce_contributions(output, tensors)
    dist.barrier()


def test_several_contributions() -> None:
    with Ranks(2) as ranks:
        ranks.call(__file__, "several")


def product() -> None:
    with pytest.raises(Exception, match="depends on their order"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.PRODUCT)
    whole = torch.full((3,), 2)
    dist.all_reduce(whole, dist.ReduceOp.PRODUCT)
    assert whole.tolist() == [4, 4, 4]


def test_products_are_refused() -> None:
    with Ranks(2, ISTHMUS_DETERMINISTIC="1") as ranks:
        ranks.call(__file__, "product")
