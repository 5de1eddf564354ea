"""Fixtures shared by the Python tests: pools of ranks that many tests use one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import Ranks  # noqa: E402

torch = pytest.importorskip("torch", reason="the torch backend is tested where torch is installed")
pytest.importorskip("isthmus", reason="the package isthmus is not installed")


@pytest.fixture(scope="session")
def pool() -> Iterator[Callable[[int], Ranks]]:
    """pool(4) is a job of 4 ranks; one that a failed test left behind is replaced."""
    pools: dict[int, Ranks] = {}

    def get(size: int) -> Ranks:
        if size in pools and pools[size].broken:
            pools.pop(size).__exit__()
        if size not in pools:
            pools[size] = Ranks(size)
        return pools[size]

    yield get
    for ranks in pools.values():
        ranks.__exit__()
