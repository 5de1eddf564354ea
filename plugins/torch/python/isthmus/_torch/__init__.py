"""Chooses the part of isthmus that was compiled for the torch in this process, and makes groups."""

from __future__ import annotations

import importlib
import os
import pkgutil
from typing import Any

from isthmus._torch import flight_recorder

# Completion callbacks get this long to end when the process exits.
_EXIT_LIMIT_MS = 2000

_shim: Any = None

_BUILD = "pip install --force-reinstall --no-deps . (in the folder of isthmus' source)"


def _version_of(torch_version: str) -> tuple[str, str]:
    """("2", "13") of "2.13.0+cpu"."""
    major, minor = torch_version.split("+")[0].split(".")[:2]
    return major, minor


def _built_for() -> list[str]:
    """Minor versions of torch that this installation has a shim for, as in "2.13"."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    numbers = sorted([int(part) for part in n[3:].split("_")] for n in names if n[:3] == "_C_")
    return [".".join(map(str, number)) for number in numbers]


def load() -> Any:
    """The extension module for this torch; loads it on the first call.

    Raises ImportError with one sentence and the command to build it when there is none.
    """
    global _shim
    if _shim is not None:
        return _shim
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "The backend isthmus needs PyTorch, which is not installed here. Run: "
            "pip install torch==2.13.0, then: " + _BUILD
        ) from error
    name = "_C_" + "_".join(_version_of(torch.__version__))
    built = _built_for()
    if name[3:].replace("_", ".") not in built:
        have = "for torch " + ", ".join(built) if built else "without torch at hand"
        raise ImportError(
            f"This isthmus was built {have} and cannot be used with torch {torch.__version__}. "
            f"Build it for this torch with: {_BUILD}"
        )
    shim = importlib.import_module(f"{__name__}.{name}")
    _end_at_exit(shim)
    flight_recorder.join_torch(shim)
    _shim = shim
    return shim


def _end_at_exit(shim: Any) -> None:
    """Ends all communication before the interpreter goes: no thread of ours may need it then."""
    import atexit

    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            shim.close_all("the process exits", _EXIT_LIMIT_MS)

    atexit.register(end)


def _integer(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else 0


def create(options: Any, backend_options: Any) -> Any:
    """A backend object for one process group, from torch's _DistributedBackendOptions."""
    shim = load()
    timeout = options.timeout
    priority = "normal"
    if isinstance(backend_options, shim.Options):
        timeout = backend_options._timeout
        priority = backend_options.priority
    return shim.create(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=timeout,
        name=options.group_id,
        world_ranks=list(options.global_ranks_in_group),
        restart=_integer("TORCHELASTIC_RESTART_COUNT"),
        priority=priority,
    )
