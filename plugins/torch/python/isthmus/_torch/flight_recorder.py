"""Adds this package's flight records to what torch's own dump functions return.

Torch 2.13 keeps its flight recorder to the backends inside its own libraries (the symbols are
hidden), so ours is a second one of the same type. Torch's functions are replaced, once, by ones
that return both: whatever reads their result finds our groups there.
"""

from __future__ import annotations

import json
import pickle
from typing import Any


def _merged(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """``other`` with the groups and, by time, the entries of ``own``."""
    merged = dict(other)
    for key in ("pg_config", "pg_status"):
        merged[key] = {**other.get(key, {}), **own.get(key, {})}
    if "entries" in own or "entries" in other:
        entries = [*other.get("entries", []), *own.get("entries", [])]
        merged["entries"] = sorted(entries, key=lambda entry: entry["time_created_ns"])
    return merged


def join_torch(shim: Any) -> None:
    """Makes torch's dump functions return our records as well, if any are wanted."""
    if not shim.flight_recorder_wanted():
        return
    from torch._C import _distributed_c10d as c10d

    dump, dump_json = c10d._dump_fr_trace, c10d._dump_fr_trace_json

    def _dump_fr_trace(
        includeCollectives: bool = True, includeStackTraces: bool = True, onlyActive: bool = False
    ) -> bytes:
        own = shim.flight_records(includeCollectives, includeStackTraces, onlyActive)
        other = dump(includeCollectives, includeStackTraces, onlyActive)
        return pickle.dumps(_merged(pickle.loads(own), pickle.loads(other)))

    def _dump_fr_trace_json(includeCollectives: bool = True, onlyActive: bool = False) -> bytes:
        own = shim.flight_records_json(includeCollectives, onlyActive)
        other = dump_json(includeCollectives, onlyActive)
        return json.dumps(_merged(json.loads(own), json.loads(other))).encode()

    c10d._dump_fr_trace, c10d._dump_fr_trace_json = _dump_fr_trace, _dump_fr_trace_json
