from datetime import timedelta
from typing import Any, Protocol

class Shim(Protocol):
    """An extension module _C_<major>_<minor>."""

    torch_version: str
    Options: type
    Backend: type
    def create(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        world_ranks: list[int],
        restart: int,
    ) -> Any: ...
    def close_all(self, reason: str, limit_ms: int) -> None: ...

def load() -> Shim: ...
def create(options: Any, backend_options: Any) -> Any: ...
