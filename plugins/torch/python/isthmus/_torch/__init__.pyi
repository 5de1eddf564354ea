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
        priority: str,
    ) -> Any: ...
    def flight_records(self, collectives: bool, stacks: bool, only_active: bool) -> bytes: ...
    def flight_records_json(self, collectives: bool, only_active: bool) -> str: ...
    def flight_recorder_wanted(self) -> bool: ...
    def close_all(self, reason: str, limit_ms: int) -> None: ...

def load() -> Shim: ...
def create(options: Any, backend_options: Any) -> Any: ...
