"""Every type with every reduction: the result of a computation in float64 or int64, or a refusal.

Method: two ranks hold random numbers mixed with NaN, infinities, denormals and the ends of the
integers, from a seed per case; sizes around a vector and one of the large path. docs/dtypes.md is
compared with what is accepted.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

SIZES = [0, 1, 7, 1023, 300_001]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
FLOATS = ["float64", "float32", "float16", "bfloat16"]
FLOATS8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"]
COMPLEX = ["complex128", "complex64"]
DTYPES = [*FLOATS, *FLOATS8, *INTEGERS, "bool", *COMPLEX]
PAGE = Path(__file__).parents[2] / "docs" / "dtypes.md"


def documented() -> dict[tuple[str, str], bool]:
    """The table of docs/dtypes.md: whether (type, operation) is supported."""
    lines = PAGE.read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    head = rows[0][1:]
    assert head == OPS
    return {(row[0], op): cell == "yes" for row in rows[1:] for op, cell in zip(head, row[1:])}


def generator(*case: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(case).encode()))


def operand(rank: int, count: int, name: str, op: str) -> torch.Tensor:
    random = generator(rank, count, name, op)
    dtype = getattr(torch, name)
    if name == "bool":
        return torch.from_numpy(random.integers(0, 2, count).astype(bool))
    if name in INTEGERS:
        info = np.iinfo(name)
        # The sum of an average must fit.
        low, high = (info.min // 2, info.max // 2) if op == "AVG" else (info.min, info.max)
        return torch.from_numpy(random.integers(low, high, count, dtype=name, endpoint=True))
    if name in COMPLEX:
        numbers = random.normal(size=(2, count))
        return torch.complex(*(torch.from_numpy(part) for part in numbers)).to(dtype)
    numbers = random.normal(size=count) * 2.0 ** random.integers(-8, 9, count)
    numbers[random.random(count) < 0.01] = np.nan
    if name in ("float64", "float32", "float16", "bfloat16", "float8_e5m2"):
        numbers[random.random(count) < 0.01] = np.inf
        numbers[random.random(count) < 0.01] = -np.inf
    least = {"float64": -1070, "float32": -145, "bfloat16": -130, "float16": -23}.get(name, -9)
    numbers[random.random(count) < 0.02] = 3 * 2.0**least
    return torch.from_numpy(numbers).to(dtype)


def factor(rank: int) -> float:
    return (0.1, -3.0, 0.75, 2.0)[rank % 4]


def combined_integers(op: str, parts: list[np.ndarray]) -> np.ndarray:
    a, b = parts
    if op == "AVG":
        total = a.astype(object) + b.astype(object)
        return np.array([abs(x) // 2 * (1 if x >= 0 else -1) for x in total]).astype(a.dtype)
    functions = {
        "SUM": np.add,
        "PRODUCT": np.multiply,
        "MIN": np.minimum,
        "MAX": np.maximum,
        "BAND": np.bitwise_and,
        "BOR": np.bitwise_or,
        "BXOR": np.bitwise_xor,
    }
    return functions[op](a, b)


def combined_floats(op: str, parts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    single = torch.float32 if dtype.itemsize <= 2 else dtype

    def rounded(values: torch.Tensor) -> torch.Tensor:
        """From the exact result to the accumulator's type, then to the one of the tensor."""
        return values.to(single).to(dtype)

    if op == "PREMUL_SUM":
        real = torch.float64 if single in (torch.float64, torch.complex128) else torch.float32
        factors = [torch.tensor(factor(rank), dtype=real).to(torch.float64) for rank in range(2)]
        parts = [rounded(part.to(wide) * by) for part, by in zip(parts, factors)]
    if dtype.is_complex and op == "PRODUCT":
        (a, b), (c, d) = (torch.view_as_real(part).unbind(-1) for part in parts)
        return torch.complex(a * c - b * d, a * d + b * c)
    a, b = (part.to(wide) for part in parts)
    if op == "AVG":
        return rounded((a + b) / 2)
    functions = {
        "SUM": torch.add,
        "PREMUL_SUM": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
    }
    return rounded(functions[op](a, b))


def wanted(op: str, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
    if name in INTEGERS or name == "bool":
        logical = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}
        op = logical.get(op, op) if name == "bool" else op
        return torch.from_numpy(combined_integers(op, [part.numpy() for part in parts]))
    return combined_floats(op, parts, getattr(torch, name))


def bits(tensor: torch.Tensor) -> np.ndarray:
    """Its bytes, with any NaN as the same one, and no signs of zeros."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    raw = flat.view(torch.uint8).numpy().reshape(flat.numel(), flat.itemsize)
    if tensor.is_floating_point():
        numbers = flat.to(torch.float64).numpy()
        raw[np.isnan(numbers)] = 0xFF
        raw[numbers == 0] = 0
    return raw


def check(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    wrong = np.flatnonzero((bits(got) != bits(want)).any(axis=1))
    if wrong.size:
        parts = [torch.view_as_real(t) if t.is_complex() else t for t in (got, want)]
        first = [part.reshape(-1)[int(wrong[0])].item() for part in parts]
        raise AssertionError(f"{what}: {wrong.size} wrong, element {wrong[0]}: {first}")


def operation(op: str, as_tensor: bool = False) -> dist.ReduceOp:
    if op != "PREMUL_SUM":
        return getattr(dist.ReduceOp, op)
    by = factor(dist.get_rank())
    # A tensor of float64: its one element is not rounded before it is used.
    return dist._make_nccl_premul_sum(torch.tensor([by], dtype=torch.float64) if as_tensor else by)


# Run on the ranks.


def reductions(name: str, op: str) -> None:
    rank = dist.get_rank()
    for count in SIZES:
        parts = [operand(other, count, name, op) for other in range(2)]
        want = wanted(op, name, parts)
        what = f"{op} of {name}[{count}]"
        tensor = parts[rank].clone()
        if name in COMPLEX and op == "PRODUCT":
            # torch.distributed refuses it; its process group passes it on.
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.PRODUCT
            dist.group.WORLD.allreduce([tensor], options).wait()
        else:
            dist.all_reduce(tensor, operation(op))
        check(tensor, want, f"all_reduce {what}")
        if name in COMPLEX and op == "PRODUCT":
            continue
        work_tensor = parts[rank].clone()
        dist.all_reduce(work_tensor, operation(op, as_tensor=True), async_op=True).wait()
        check(work_tensor, want, f"asynchronous all_reduce {what}")
        at_root = parts[rank].clone()
        dist.reduce(at_root, 1, operation(op))
        check(at_root, want if rank == 1 else parts[rank], f"reduce {what}")
        half = count // 2
        whole = parts[rank][: 2 * half].clone()
        mine = torch.empty(half, dtype=whole.dtype)
        dist.reduce_scatter_single(mine, whole, operation(op))
        check(mine, want[rank * half : (rank + 1) * half], f"reduce_scatter {what}")
        check(whole, parts[rank][: 2 * half], f"the input of reduce_scatter {what}")


def accepted(names: list[str]) -> dict[str, str]:
    """What every (type, operation) answers: "" or the text of its refusal."""
    answers = {}
    for name in names:
        dtype = getattr(torch, name)
        for op in OPS:
            tensor = torch.ones(3, dtype=torch.float32).to(dtype)
            try:
                dist.all_reduce(tensor, operation(op))
                answers[f"{name} {op}"] = ""
            except (RuntimeError, ValueError) as error:
                answers[f"{name} {op}"] = f"{type(error).__name__}: {error}"
    # The group is in step and usable.
    dist.all_reduce(tensor := torch.ones(4))
    assert tensor[0].item() == dist.get_world_size()
    return answers


def factor_mismatch() -> tuple[str, list[float]]:
    """PREMUL_SUM against SUM is refused, and the operands are what they were."""
    tensor = torch.full((5,), 3.0)
    op = dist._make_nccl_premul_sum(2.0) if dist.get_rank() == 0 else dist.ReduceOp.SUM
    try:
        dist.all_reduce(tensor, op)
    except dist.DistBackendError as error:
        return str(error), tensor.tolist()
    raise AssertionError("no error was raised")


def bool_bytes() -> list[int]:
    """Bytes of a bool tensor that are neither 0 nor 1 count as true; results are 0 or 1."""
    raw = torch.tensor([0, 1, 2, 255] * 50, dtype=torch.uint8)
    tensor = raw.view(torch.bool)
    dist.all_reduce(tensor, dist.ReduceOp.SUM)
    return tensor.view(torch.uint8)[:4].tolist()


# Tests.


@pytest.mark.parametrize("name", DTYPES)
def test_results(pool, name):
    table = documented()
    for op in OPS:
        if table[name, op]:
            pool(2).call(__file__, "reductions", name, op)


def test_the_page_says_what_is_accepted(pool):
    others = ["float8_e8m0fnu"]
    answers = pool(2).call(__file__, "accepted", [*DTYPES, *others])[0]
    table = documented()
    assert {name for name, _ in table} == {*DTYPES, "any other"}
    for case, answer in answers.items():
        name, op = case.split()
        if name in COMPLEX and op == "PRODUCT":
            assert answer.startswith("ValueError"), answer  # torch's own
            continue
        assert (answer == "") == table["any other" if name in others else name, op], case + answer
        if answer and name not in COMPLEX:  # torch refuses those, or shows them as real numbers
            assert op in answer and name in answer, answer


def test_factors_are_part_of_the_operation(pool):
    for text, values in pool(2).call(__file__, "factor_mismatch"):
        assert "PREMUL_SUM" in text and "SUM" in text, text
        assert values == [3.0] * 5


def test_bools_are_0_or_1(pool):
    assert pool(2).call(__file__, "bool_bytes") == [[0, 1, 1, 1]] * 2
