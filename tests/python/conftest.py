"""Fixtures shared by the Python tests: pools of ranks that many tests use one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Whoever runs these tests has installed both: one that is missing is an error, never a skip.
import isthmus  # noqa: F401
import pytest
import torch  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))

from harness import Ranks  # noqa: E402


@pytest.fixture(scope="session")
def pool() -> Iterator[Callable[..., Ranks]]:
    """pool(4) is a job of 4 ranks, pool(4, "aabb") one of 2 pretended nodes of 2.

    A job that a failed test left behind is replaced.
    """
    pools: dict[tuple[int, str], Ranks] = {}

    def get(size: int, nodes: str = "") -> Ranks:
        key = (size, nodes)
        if key in pools and pools[key].broken:
            pools.pop(key).__exit__()
        if key not in pools:
            pools[key] = Ranks(size, nodes=nodes)
        return pools[key]

    yield get
    for ranks in pools.values():
        ranks.__exit__()
