"""Buffers of FSDP2 and DDP in memory of the group: isthmus.use_group_memory, ISTHMUS_GROUP_MEMORY.

Changes the classes of torch only where ISTHMUS_GROUP_MEMORY=1 asks for it, and then once a process.
"""

import functools
import inspect
import sys

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

import isthmus
from isthmus import _torch


def use(module):
    """What isthmus.use_group_memory does."""
    found = False
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_allocate_memory_from_process_group_for_comm(True)
            found = True
        elif isinstance(part, DistributedDataParallel):
            _rebuild_buckets_there(part, isthmus._backend(part.process_group, "use_group_memory"))
            found = True
    if not found:
        raise ValueError(
            "isthmus.use_group_memory takes a model that fully_shard or DistributedDataParallel "
            f"wrapped; this {type(module).__name__} has no such part."
        )
    return module


@functools.cache
def adopt():
    """From now on every DDP and FSDP2 model over groups of isthmus has its buffers there."""
    _adopt_ddp()
    try:
        _adopt_fsdp2()
    except (AttributeError, ImportError) as error:
        print(
            "isthmus: ISTHMUS_GROUP_MEMORY=1 does not reach FSDP2 of torch "
            f"{torch.__version__} ({error}); DDP has it.",
            file=sys.stderr,
        )


def _adopt_ddp():
    wrap = DistributedDataParallel.__init__
    signature = inspect.signature(wrap)

    @functools.wraps(wrap)
    def wrap_there(self, *inputs, **kwargs):
        # Gradients that lie in the buckets are not copied there and back, which costs more than
        # the reduction. What the program says itself stays.
        given = signature.bind_partial(self, *inputs, **kwargs).arguments
        if "gradient_as_bucket_view" not in given and _is_ours(given):
            kwargs["gradient_as_bucket_view"] = True
        wrap(self, *inputs, **kwargs)
        backend = _ours(self.process_group)
        if backend is not None and self.device_type == "cpu":
            _rebuild_buckets_there(self, backend)

    DistributedDataParallel.__init__ = wrap_there


def _is_ours(given):
    """Whether DDP of these arguments reduces CPU gradients over isthmus."""
    module, mesh = given.get("module"), given.get("device_mesh")
    if module is None or any(each.device.type != "cpu" for each in module.parameters()):
        return False
    return _ours(mesh.get_group() if mesh is not None else given.get("process_group")) is not None


def _adopt_fsdp2():
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    first_use = FSDPParamGroup.lazy_init
    allocate_there = FSDPParamGroup.set_allocate_memory_from_process_group
    default_gather, default_scatter = collectives.DefaultAllGather, collectives.DefaultReduceScatter

    @functools.wraps(first_use)
    def first_use_there(self):
        # What the program has set itself stays.
        default = isinstance(self._all_gather_comm, default_gather) and isinstance(
            self._reduce_scatter_comm, default_scatter
        )
        if default and _ours(self._all_gather_process_group):
            allocate_there(self, True)
        return first_use(self)

    FSDPParamGroup.lazy_init = first_use_there


def _ours(group):
    try:
        return isthmus._backend(group, "use_group_memory")
    except (RuntimeError, ValueError):  # a group of other backends, or without one for the CPU
        return None


def _rebuild_buckets_there(ddp, backend):
    memory = _torch.load().GroupMemory(backend)
    before_forward = ddp._pre_forward

    def rebuild_first(*inputs, **kwargs):
        if torch.is_grad_enabled():
            with memory:
                rebuilt = ddp.reducer._rebuild_buckets()
            if rebuilt:
                ddp._has_rebuilt_buckets = True
                del ddp._pre_forward  # once is all: the class's own is back
        return before_forward(*inputs, **kwargs)

    ddp._pre_forward = rebuild_first
