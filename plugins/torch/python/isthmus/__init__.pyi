from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeVar

from torch import Tensor, nn
from torch import dtype as _dtype

_Model = TypeVar("_Model", bound=nn.Module)

__version__: str
torch_version: str

class Options:
    """What a process group is made with: new_group(pg_options=isthmus.Options(...)).

    priority: "urgent", "normal" or "background", which of several operations' data goes first
    between nodes; is_high_priority_stream, as NCCL's options have it, is whether that is "urgent".
    """

    priority: str
    is_high_priority_stream: bool
    def __init__(self, timeout: timedelta = ..., priority: str = "normal") -> None: ...

class tag:
    def __init__(self, k: int) -> None: ...
    def __enter__(self) -> "tag": ...
    def __exit__(self, *_: object) -> None: ...

def all_reduce_contributions(
    output: Tensor,
    contributions: Iterable[Tensor],
    op: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any: ...
def empty(*size: Any, dtype: _dtype | None = None, group: Any = None) -> Tensor: ...
def use_group_memory(module: _Model) -> _Model: ...
def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = True
) -> None: ...
