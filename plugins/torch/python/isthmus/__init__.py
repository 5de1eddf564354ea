"""isthmus: collectives for PyTorch over shared memory and the network.

Installing the package is enough: torch's entry points register the backend, and
``torch.distributed.init_process_group("isthmus")`` uses it. Importing this module does the same
where entry points are switched off. It works without torch, and imports nothing heavy.
"""

import sys

__all__ = [
    "Options",
    "__version__",
    "all_reduce_contributions",
    "empty",
    "monitored_barrier",
    "tag",
    "torch_version",
    "use_group_memory",
]

_NAME = "isthmus"
_C10D = "torch.distributed.distributed_c10d"


def _create(options, backend_options):
    """What torch calls for every process group: the shim is loaded on the first use."""
    from isthmus import _torch

    backend = _torch.create(options, backend_options)
    if _torch.load().adopts_group_memory():
        from isthmus import _group_memory

        _group_memory.adopt()
    return backend


def _register():
    """Makes the backend known to torch.distributed; doing it again changes nothing."""
    from torch.distributed.distributed_c10d import Backend

    plugin = Backend._plugins.get(_NAME.upper())
    if plugin is not None and plugin.creator_fn is _create:
        return
    if plugin is not None or _NAME in Backend.backend_list:
        raise RuntimeError(
            'torch.distributed already has a backend named "isthmus" that is not this package: '
            "remove the other one, or uninstall isthmus."
        )
    Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu", "cuda"])


class _RegisterLater:
    """Stands in sys.meta_path until torch.distributed is imported, and registers right after."""

    def find_spec(self, name, path=None, target=None):
        if name != _C10D:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_register(module):
            run(module)
            _register()

        spec.loader.exec_module = run_and_register
        return spec


def _say_without_torch():
    """One line on stderr where there is no torch; our own commands do not need it."""
    import importlib.util
    import os.path

    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    if program == _NAME or program.endswith("_perf") or importlib.util.find_spec("torch"):
        return
    print(
        "isthmus: PyTorch is not installed, so its backend is not there. Run: "
        "pip install torch==2.13.0 && pip install --force-reinstall --no-deps . "
        "(in the folder of isthmus' source)",
        file=sys.stderr,
    )


class tag:  # noqa: N801 - used as a function
    """``with isthmus.tag(k):`` puts the calls of this thread into an order of their own.

    Calls of a group must come in the same order on every rank. Threads that share a group cannot
    promise that among each other; with a tag each, every thread only has to keep its own order.
    Calls with tag k meet the other ranks' calls with tag k, in any group; 0 is the calls without.
    k: a whole number from 0 to 2**31 - 1.
    """

    def __init__(self, k):
        if not 0 <= k < 2**31:
            raise ValueError(f"isthmus.tag takes a whole number from 0 to 2**31 - 1, got {k}.")
        self._tags = [k]

    def __enter__(self):
        from isthmus import _torch

        shim = _torch.load()
        self._tags.append(shim.thread_tag())
        shim.set_thread_tag(self._tags[0])
        return self

    def __exit__(self, *_):
        from isthmus import _torch

        _torch.load().set_thread_tag(self._tags.pop())


def monitored_barrier(group=None, timeout=None, wait_all_ranks=True):
    """A barrier whose error names every rank that did not come within the time limit.

    torch's function of this name takes groups of gloo only. group: a process group, None for the
    default one; timeout: a timedelta, None for the group's. Late ranks are all named, whatever
    wait_all_ranks says. Raises DistBackendError, and the group is over then.
    """
    _backend(group, "monitored_barrier").monitored_barrier(*([] if timeout is None else [timeout]))


def all_reduce_contributions(output, contributions, op=None, group=None, async_op=False):
    """Reduces several tensors of every rank into ``output`` on all ranks.

    With ISTHMUS_DETERMINISTIC=1 a sum has the bits that its contributions have on any number of
    ranks: the gradients of 24 micro-batches, say, on 2, 3, 4, 6 or 8 (docs/determinism.md).
    contributions: tensors of the size and type of output, as many on every rank; output may be one
    of them. op: a torch.distributed.ReduceOp, None for SUM; AVG divides by the number of
    contributions of all ranks. group: a process group, None for the default one. Returns a work
    where async_op is true, else None.
    """
    from torch import distributed

    options = distributed.AllreduceOptions()
    options.reduceOp = distributed.ReduceOp.SUM if op is None else op
    options.asyncOp = async_op
    backend = _backend(group, "all_reduce_contributions")
    return backend.all_reduce_contributions(output, list(contributions), options)


def empty(*size, dtype=None, group=None):
    """A CPU tensor with undefined contents in memory that the ranks of a node use in place.

    Large collectives of the group, and of groups made from it, skip their staging copies when all
    ranks' buffers are such tensors, or whole or partial contiguous views of them: two to four times
    faster from some 10 KB on. size: as for torch.empty. dtype: None for torch's default. group: a
    process group, None for the default one. The memory is kept for the next tensor of like size. A
    forked process does not have it. Raises RuntimeError when memory runs out.
    """
    import math

    import torch

    if len(size) == 1 and not isinstance(size[0], int):
        size = tuple(size[0])
    dtype = dtype if dtype is not None else torch.get_default_dtype()
    cpu = torch.device("cpu")
    flat = _backend(group, "empty").allocate_tensor(math.prod(size), dtype=dtype, device=cpu)
    return flat.view(size)


def use_group_memory(module):
    """Puts the buffers that a wrapped model communicates from into memory of its groups.

    The ranks of a node use such buffers in place, without staging: see isthmus.empty. module: a
    model under FSDP2 (fully_shard) or DistributedDataParallel, or one that has such parts; all
    ranks do the same. Of FSDP2 all buffers, from the next step on; of DDP the gradient buckets,
    when it rebuilds them after its first backward (with find_unused_parameters=True it never does,
    unless static_graph is set). Results are the same bits. Returns the module. Raises ValueError
    when there is no such part, or its group is not of isthmus. ISTHMUS_GROUP_MEMORY=1 does it for
    every model of a program that is not to be changed.
    """
    from isthmus import _group_memory

    return _group_memory.use(module)


def _backend(group, asks):
    """Ours of a process group, None: of the default one. asks: who wants it, for the error."""
    import torch
    from torch import distributed

    from isthmus import _torch

    group = group if group is not None else distributed.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts one around it.
    backend = getattr(backend, "wrapped_pg", backend)
    if not isinstance(backend, _torch.load().Backend):
        raise ValueError(
            f"isthmus.{asks} takes groups of isthmus; this one is of {backend.name()}."
        )
    return backend


def __getattr__(name):
    if name == "Options":  # of process groups: new_group(pg_options=isthmus.Options(...))
        from isthmus import _torch

        return _torch.load().Options
    if name == "torch_version":
        from isthmus import _torch

        return _torch.load().torch_version
    if name == "__version__":
        from importlib import metadata

        return metadata.version(_NAME)
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")


# While torch itself is being imported it is the entry point's turn (isthmus._autoload).
if _C10D in sys.modules:
    if hasattr(sys.modules[_C10D], "new_group"):
        _register()
elif "torch" not in sys.modules:
    sys.meta_path.insert(0, _RegisterLater())

if "torch" not in sys.modules or sys.modules["torch"] is None:
    _say_without_torch()
