from datetime import timedelta
from typing import Any

__version__: str
torch_version: str

class tag:
    def __init__(self, k: int) -> None: ...
    def __enter__(self) -> "tag": ...
    def __exit__(self, *_: object) -> None: ...

def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = True
) -> None: ...
