"""One rank of tests/python/harness.py: runs the functions that arrive as JSON lines on stdin."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

_modules: dict[str, object] = {}


def join(backend: str = "isthmus", timeout_s: float = 60) -> None:
    """Initialises the default group over the store of this job."""
    size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        backend,
        store=dist.FileStore(os.environ["HARNESS_STORE"], size),
        rank=int(os.environ["RANK"]),
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )


def _load(file: str) -> object:
    if file not in _modules:
        sys.path.insert(0, str(Path(file).parent))
        spec = importlib.util.spec_from_file_location(f"rank_{Path(file).stem}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _modules[file] = module
    return _modules[file]


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    for line in sys.stdin:
        request = json.loads(line)
        faulthandler.dump_traceback_later(100)
        try:
            value = getattr(_load(request["file"]), request["function"])(*request["args"])
            reply = {"value": value}
        except Exception as error:
            reply = {"error": traceback.format_exc(limit=-6), "type": type(error).__name__,
                     "message": str(error)}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
