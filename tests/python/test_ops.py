"""Every operation gives the bits of a local computation.

Method: small integers, exact in every type and order of summation, for sizes around the edges of
the small and the large path; results are compared with torch.equal. Each test is one call on a
pool of ranks, which runs all sizes of one operation and type.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

SIZES = [0, 1, 1021, 70000]
LARGE = 5_000_000
REDUCED = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"]
FLOATS = REDUCED[:4]
MOVED = [
    *REDUCED,
    "int8",
    "int16",
    "uint16",
    "uint64",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]


def value(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank holds: values of 0 to 4, so that products and sums of 4 ranks fit uint8."""
    top = 2 if dtype.is_floating_point and dtype.itemsize == 1 else 4
    numbers = (torch.arange(count) * 7 + rank * 3) % top + (rank == 0)
    return numbers.to(torch.float32).to(dtype)


def values(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [value(rank, count, dtype) for rank in range(dist.get_world_size())]


def reduced(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    exact = torch.float64 if tensors[0].is_floating_point() else torch.int64
    stack = torch.stack([tensor.to(exact) for tensor in tensors])
    functions = {
        "SUM": stack.sum,
        "AVG": stack.mean if exact == torch.float64 else stack.sum,
        "PRODUCT": stack.prod,
        "MIN": stack.amin,
        "MAX": stack.amax,
    }
    return functions[op](0).to(tensors[0].dtype)


def equal(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (got.dtype, got.shape)
    same = got.contiguous().view(torch.uint8) == wanted.contiguous().view(torch.uint8)
    if not bool(same.all()):
        odd = (~same).nonzero().flatten()
        first, last = int(odd[0]) // got.itemsize, int(odd[-1]) // got.itemsize
        raise AssertionError(
            f"{odd.numel()} of {same.numel()} bytes differ, of elements {first} to {last}: "
            f"{got.flatten()[first : first + 8].tolist()} there, "
            f"{wanted.flatten()[first : first + 8].tolist()} wanted"
        )


def sizes(dtype: str) -> list[int]:
    return [*SIZES, LARGE] if dtype in ("float32", "bfloat16") else SIZES


# Run on the ranks.


def all_reduce(op: str, name: str) -> None:
    dtype = getattr(torch, name)
    for count in sizes(name) if op == "SUM" else SIZES:
        tensor = value(dist.get_rank(), count, dtype)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        equal(tensor, reduced(op, values(count, dtype)))


def reduce_scatter(op: str, name: str) -> None:
    dtype, rank, size = getattr(torch, name), dist.get_rank(), dist.get_world_size()
    for count in SIZES:
        whole = value(rank, count * size, dtype)
        wanted = reduced(op, values(count * size, dtype))[rank * count : (rank + 1) * count]
        apart = torch.empty(count, dtype=dtype)
        dist.reduce_scatter_single(apart, whole.clone(), getattr(dist.ReduceOp, op))
        equal(apart, wanted)
        inside = whole[rank * count : (rank + 1) * count]
        dist.reduce_scatter_single(inside, whole, getattr(dist.ReduceOp, op))
        equal(inside, wanted)


def all_gather(name: str) -> None:
    dtype, rank, size = getattr(torch, name), dist.get_rank(), dist.get_world_size()
    for count in SIZES:
        wanted = torch.cat(values(count, dtype))
        apart = torch.empty(count * size, dtype=dtype)
        dist.all_gather_single(apart, value(rank, count, dtype))
        equal(apart, wanted)
        inside = torch.empty(count * size, dtype=dtype)
        inside[rank * count : (rank + 1) * count] = value(rank, count, dtype)
        dist.all_gather_single(inside, inside[rank * count : (rank + 1) * count])
        equal(inside, wanted)


def broadcast(name: str) -> None:
    dtype, rank = getattr(torch, name), dist.get_rank()
    for root in range(dist.get_world_size()):
        for count in SIZES if root == 0 else SIZES[:3]:
            tensor = value(rank, count, dtype)
            dist.broadcast(tensor, root)
            equal(tensor, value(root, count, dtype))


def lists(uneven: int) -> None:
    """List forms, with blocks of different sizes where `uneven` is not 0."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in SIZES:
        counts = [count + uneven * other for other in range(size)]
        outputs = [torch.empty(n) for n in counts]
        dist.all_gather(outputs, value(rank, counts[rank], torch.float32))
        for other in range(size):
            equal(outputs[other], value(other, counts[other], torch.float32))
        output = torch.empty(counts[rank])
        dist.reduce_scatter(output, [value(rank, n, torch.float32) for n in counts])
        equal(output, reduced("SUM", values(counts[rank], torch.float32)))
    packed = torch.empty(size * 70)
    dist.all_gather(list(packed.chunk(size)), value(rank, 70, torch.float32))
    equal(packed, torch.cat(values(70, torch.float32)))


def not_dense() -> None:
    """Strided and transposed tensors give right results."""
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = values(2 * 1021, torch.float32)
    strided = value(rank, 2 * 1021, torch.float32)[::2]
    dist.all_reduce(strided)
    equal(strided.contiguous(), reduced("SUM", everyone)[::2].contiguous())
    gaps = value(rank, 2 * 1021, torch.float32)
    work = dist.all_reduce(gaps[::2], async_op=True)
    work.wait()
    equal(gaps[1::2].contiguous(), everyone[rank][1::2].contiguous())
    equal(gaps[::2].contiguous(), reduced("SUM", everyone)[::2].contiguous())
    table = value(rank, 12, torch.float32).view(3, 4).t()
    dist.broadcast(table, 0)
    equal(table.contiguous(), value(0, 12, torch.float32).view(3, 4).t().contiguous())
    output = torch.empty(size * 10, 2)[:, 0]
    dist.all_gather_single(output, value(rank, 20, torch.float32)[::2])
    equal(output.contiguous(), torch.cat([t[::2] for t in values(20, torch.float32)]))
    part = torch.empty(10)
    dist.reduce_scatter_single(part, value(rank, 20 * size, torch.float32)[::2])
    wanted = reduced("SUM", values(20 * size, torch.float32))[::2]
    equal(part, wanted[rank * 10 : rank * 10 + 10].contiguous())
    image = value(rank, 2 * 3 * 4 * 4, torch.float32).view(2, 3, 4, 4)
    last = image.to(memory_format=torch.channels_last)
    dist.all_reduce(last)
    equal(last.contiguous(), reduced("SUM", values(96, torch.float32)).view(2, 3, 4, 4))


def coalesced() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = (3, 0, 70, 9001)
    inputs = [value(rank, n * size, torch.float32) for n in counts]
    sums = [reduced("SUM", values(n * size, torch.float32)) for n in counts]
    tensors = [tensor.clone() for tensor in inputs]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for got, wanted in zip(tensors, sums, strict=True):
        equal(got, wanted)
    outputs = [torch.empty(n) for n in counts]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_single(output, tensor)
    manager.wait()
    for n, got, wanted in zip(counts, outputs, sums, strict=True):
        equal(got, wanted[rank * n : (rank + 1) * n])
    gathered = [torch.empty(n * size * size) for n in counts]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, tensor in zip(gathered, inputs, strict=True):
            dist.all_gather_single(output, tensor)
    manager.wait()
    for n, got in zip(counts, gathered, strict=True):
        equal(got, torch.cat(values(n * size, torch.float32)))


def functional() -> None:
    import torch.distributed._functional_collectives as functions

    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    tensor = value(rank, 4 * size, torch.float32)
    everyone = values(4 * size, torch.float32)
    wait = functions.wait_tensor
    equal(wait(functions.all_reduce(tensor, "avg", group)), reduced("AVG", everyone))
    equal(wait(functions.all_gather_tensor(tensor, 0, group)), torch.cat(everyone))
    part = wait(functions.reduce_scatter_tensor(tensor, "sum", 0, group))
    equal(part, reduced("SUM", everyone)[rank * 4 : rank * 4 + 4])
    swapped = wait(functions.all_to_all_single(tensor, None, None, group))
    equal(swapped, torch.cat([t[rank * 4 : rank * 4 + 4] for t in everyone]))


def rooted() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for root in range(size):
        for count in (0, 5, 70000):
            tensor = value(rank, count, torch.float32)
            dist.reduce(tensor, root)
            everyone = values(count, torch.float32)
            equal(tensor, reduced("SUM", everyone) if rank == root else everyone[rank])
            outputs = [torch.empty(count) for _ in range(size)] if rank == root else None
            dist.gather(value(rank, count, torch.float32), outputs, root)
            for got, wanted in zip(outputs or [], everyone, strict=False):
                equal(got, wanted)
            got = torch.empty(count)
            dist.scatter(got, everyone if rank == root else None, root)
            equal(got, everyone[rank])


def all_to_all() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    def sent(source: int, target: int, count: int) -> torch.Tensor:
        return value(source * size + target, count, torch.float32)

    for uneven in (0, 1):
        to = [5 + uneven * (rank + 2 * other) for other in range(size)]
        come = [5 + uneven * (other + 2 * rank) for other in range(size)]
        inputs = [sent(rank, other, to[other]) for other in range(size)]
        wanted = [sent(other, rank, come[other]) for other in range(size)]
        output = torch.empty(sum(come))
        dist.all_to_all_single(output, torch.cat(inputs), come, to)
        equal(output, torch.cat(wanted))
        if not uneven:
            equal(output, evenly(torch.cat(inputs)))
        outputs = [torch.empty(n) for n in come]
        dist.all_to_all(outputs, inputs)
        equal(torch.cat(outputs), torch.cat(wanted))


def all_to_all_beside_messages() -> None:
    """A message with tag 0 that is under way and the messages of a collective do not meet."""
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    work = dist.irecv(got := torch.empty(4), before, tag=0)
    output = torch.empty(8 * size)
    dist.all_to_all_single(output, torch.full((8 * size,), float(rank)))
    assert torch.equal(output, torch.arange(size).repeat_interleave(8).float())
    sent = dist.isend(torch.full((4,), rank + 7.0), after, tag=0)
    work.wait()
    sent.wait()
    equal(got, torch.full((4,), before + 7.0))
    try:
        dist.isend(got, after, tag=2**31 - 1)
        raise AssertionError("a tag out of bounds was accepted")
    except ValueError as error:
        assert "tags" in str(error)


def evenly(whole: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(whole)
    dist.all_to_all_single(output, whole)
    return output


def point_to_point() -> None:
    """By tag, receives posted in the other order than sends; then a large message each way."""
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    first, second = torch.empty(9), torch.empty(9)
    works = [
        dist.isend(torch.full((9,), rank + 1.0), after, tag=1),
        dist.isend(torch.full((9,), rank + 101.0), after, tag=2),
        dist.irecv(second, before, tag=2),
        dist.irecv(first, before, tag=1),
    ]
    for work in works:
        work.wait()
    equal(first, torch.full((9,), before + 1.0))
    equal(second, torch.full((9,), before + 101.0))
    for count in (0, 1, 3000, 1_000_000):
        got = torch.empty(count)
        work = dist.isend(value(rank, count, torch.float32), after)
        dist.recv(got, before)
        work.wait()
        equal(got, value(before, count, torch.float32))
    operations = [
        dist.P2POp(dist.isend, value(rank, 33, torch.float32), after),
        dist.P2POp(dist.irecv, got := torch.empty(33), before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    equal(got, value(before, 33, torch.float32))


def from_anyone() -> None:
    """Rank 0 takes what comes: a message of each rank, small and large, in each rank's order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (5, 300_000):
        if rank != 0:
            for i in range(3):
                dist.send(torch.full((count,), 10.0 * rank + i), 0, tag=count)
            continue
        seen = [0] * size
        for _ in range(3 * (size - 1)):
            source = dist.recv(got := torch.empty(count), tag=count)
            equal(got, torch.full((count,), 10.0 * source + seen[source]))
            seen[source] += 1
        assert seen == [0] + [3] * (size - 1)


def sparse() -> None:
    """Entries differ from rank to rank, one rank has none; the sum is exact the same for all."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def held(other: int) -> torch.Tensor:
        rows = [] if other == 1 else [other, other + 1, 5, 5]
        values = torch.arange(len(rows) * 3, dtype=torch.float32).reshape(-1, 3) + other
        return torch.sparse_coo_tensor([rows], values, (9, 3))

    wanted = sum((held(other).to_dense() for other in range(size)), torch.zeros(9, 3))
    tensor = held(rank)
    dist.all_reduce(tensor)
    equal(tensor.to_dense(), wanted)
    work = dist.all_reduce(tensor := held(rank), dist.ReduceOp.AVG, async_op=True)
    work.wait()
    equal(tensor.to_dense(), wanted / size)
    odd = torch.sparse_coo_tensor([[0]], [1.0], (9 + rank,))
    try:
        dist.all_reduce(odd)
        raise AssertionError("shapes differ")
    except RuntimeError as error:
        # The second is torch's own, in its debug mode.
        assert "differ in type, shape" in str(error) or "Detected mismatch" in str(error), error
    try:
        dist.all_reduce(held(rank), dist.ReduceOp.MAX)
        raise AssertionError("MAX of sparse tensors")
    except RuntimeError as error:
        assert "takes SUM and AVG only" in str(error), error


def scaled_sum() -> None:
    rank = dist.get_rank()
    tensor = value(rank, 1021, torch.float32)
    factor = dist._make_nccl_premul_sum(0.5)
    dist.all_reduce(tensor, factor)
    equal(tensor, reduced("SUM", values(1021, torch.float32)) * 0.5)
    size = dist.get_world_size()
    whole = value(rank, 8 * size, torch.float32)
    part = torch.empty(8)
    dist.reduce_scatter_single(part, whole, factor)
    equal(whole, value(rank, 8 * size, torch.float32))
    wanted = reduced("SUM", values(8 * size, torch.float32)) * 0.5
    equal(part, wanted[rank * 8 : rank * 8 + 8])


def objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    got: list[object] = [None] * size
    dist.all_gather_object(got, {"rank": rank, "text": "x" * rank * 1000})
    assert got == [{"rank": other, "text": "x" * other * 1000} for other in range(size)]
    several = [rank, "text", {"a": [rank]}]
    dist.broadcast_object_list(several, 1)
    assert several == [1, "text", {"a": [1]}]
    parts: list[object] = [None]
    dist.scatter_object_list(parts, [f"for {other}" for other in range(size)], 0)
    assert parts == [f"for {rank}"]
    back: list[object] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank * 10, back, 0)
    assert back is None or back == [other * 10 for other in range(size)]


def barriers() -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.group.WORLD.monitored_barrier()


# Tests.


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dtype", REDUCED)
def test_all_reduce(pool, size, dtype):
    for op in OPS if dtype in FLOATS else [op for op in OPS if op != "AVG"]:
        pool(size).call(__file__, "all_reduce", op, dtype)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dtype", REDUCED)
def test_reduce_scatter(pool, size, dtype):
    for op in ("SUM", "AVG", "MAX") if dtype in FLOATS else ("SUM", "MIN"):
        pool(size).call(__file__, "reduce_scatter", op, dtype)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("function", ["all_gather", "broadcast"])
def test_moves_any_type(pool, size, function):
    for dtype in MOVED:
        pool(size).call(__file__, function, dtype)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("uneven", [0, 1])
def test_lists(pool, size, uneven):
    pool(size).call(__file__, "lists", uneven)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "function",
    [
        "not_dense",
        "coalesced",
        "functional",
        "rooted",
        "all_to_all",
        "all_to_all_beside_messages",
        "point_to_point",
        "from_anyone",
        "sparse",
        "scaled_sum",
        "objects",
        "barriers",
    ],
)
def test_other(pool, size, function):
    pool(size).call(__file__, function)


# Between nodes: "ab" is all messages, "aabb" all two-level schedules.


@pytest.mark.parametrize("nodes", ["ab", "aabb"])
@pytest.mark.parametrize(
    "function, arguments",
    [
        ("all_reduce", ["SUM", "float32"]),
        ("all_reduce", ["AVG", "bfloat16"]),
        ("all_reduce", ["MAX", "int64"]),
        ("reduce_scatter", ["SUM", "float32"]),
        ("all_gather", ["float32"]),
        ("all_gather", ["uint8"]),
        ("broadcast", ["float32"]),
        ("lists", [1]),
        ("coalesced", []),
        ("rooted", []),
        ("all_to_all", []),
        ("point_to_point", []),
        ("from_anyone", []),
        ("objects", []),
        ("barriers", []),
    ],
)
def test_between_nodes(pool, nodes, function, arguments):
    pool(len(nodes), nodes).call(__file__, function, *arguments)
