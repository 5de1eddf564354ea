"""HYBRID_SHARD for FSDP2 in one pipeline: sharded inside a node, replicated across nodes.

``hybrid_shard(module, mesh)`` stands where ``fully_shard(module, mesh=mesh)`` stands with a 2-D
mesh. FSDP2 then sees the shard dimension only, and gradients are reduced by one call: while one
piece crosses between the nodes, the next is reduced inside them. Natively a reduce-scatter is over
before the all-reduce begins.
"""

import functools

import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard

import isthmus

__all__ = ["hybrid_shard", "reduce_shards"]


def reduce_shards(output, input, shards, op=None, group=None, async_op=False, priority=None):
    """Reduces ``input`` over all ranks, of which rank r keeps block r modulo ``shards``.

    A reduce_scatter over ranks that hold different shards with an all_reduce over those that hold
    the same. output: n elements; input: shards x n elements of its type; shards divides the number
    of ranks. op: a torch.distributed.ReduceOp, None for SUM; AVG divides by the number of all
    ranks. group: a process group, None for the default one. priority: "urgent", "normal" or
    "background", which of several operations' data goes first between nodes; None for the group's.
    Returns a work where async_op is true, else None.
    """
    options = distributed.ReduceScatterOptions()
    options.reduceOp = distributed.ReduceOp.SUM if op is None else op
    options.asyncOp = async_op
    return isthmus._backend(group, "fsdp.reduce_shards").reduce_shards(
        output, input, shards, options, priority
    )


def hybrid_shard(module, mesh, **kwargs):
    """fully_shard over the second dimension of ``mesh``, replicated over the first.

    module: as fully_shard takes it, and called as often: on each block, then on the root. mesh: a
    2-D DeviceMesh of CPU ranks, (replicate, shard), whose groups are of isthmus; a shard group is
    best one node. kwargs go to fully_shard. Parameters must be equal on all ranks before, as for
    fully_shard. With ``set_requires_all_reduce(False)`` the gradients of a micro-batch stay inside
    the shard group. Checkpoints and clip_grad_norm_ see the shard dimension, where replicas are
    equal. What is reduced yields to other operations between nodes, such as an all-gather that is
    under way (priority "background"). Returns the module. Raises ValueError for a mesh that does
    not fit.
    """
    if mesh.ndim != 2 or mesh.size(1) < 2:
        raise ValueError(
            "isthmus.fsdp.hybrid_shard takes a mesh of two dimensions, (replicate, shard), with "
            f"two or more ranks a shard group; this one is {tuple(mesh.shape)}."
        )
    ranks = mesh.mesh.flatten().tolist()
    if ranks != sorted(ranks):
        raise ValueError(
            "isthmus.fsdp.hybrid_shard takes a mesh whose ranks grow along its rows, as those of "
            f"init_device_mesh do; this one has {ranks}."
        )
    names = mesh.mesh_dim_names
    if names is None:
        raise ValueError("isthmus.fsdp.hybrid_shard takes a mesh whose dimensions have names.")
    everyone = _group_of(ranks)
    module = fully_shard(module, mesh=mesh[names[1]], **kwargs)
    part = module._get_fsdp_state()._fsdp_param_group
    if part is not None:
        module.set_custom_reduce_scatter(_fused()(part, mesh, everyone))
    return module


def _group_of(ranks):
    """The group of these ranks, one for every mesh of them as long as the default group lives."""
    world = distributed.group.WORLD
    if ranks == distributed.get_process_group_ranks(world):
        group = world
    else:
        of_world, group = _groups.get(tuple(ranks), (None, None))
        if of_world is not world:
            group = distributed.new_group(ranks, use_local_synchronization=True)
            _groups[tuple(ranks)] = (world, group)
    isthmus._backend(group, "fsdp.hybrid_shard")
    return group


_groups = {}


@functools.cache
def _fused():
    """The class needs torch's base class, which releases before 2.9 do not have."""
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    class FusedReduce(ReduceScatter):
        """What FSDP2 calls to reduce the gradients of one module."""

        def __init__(self, part, mesh, everyone):
            self.part = part  # FSDP2's own state of the module
            self.everyone = everyone
            self.shards = mesh.size(1)
            self.replicas = mesh.size(0)
            self.shard = mesh.get_local_rank(1)
            self.kept = None  # sums of this node's earlier micro-batches

        def allocate(self, size, *, dtype, device):
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            if not self.part.all_reduce_grads:
                distributed.reduce_scatter_single(output_tensor, input_tensor, group=group)
                earlier = 0 if self.kept is None else self.kept
                self.kept = output_tensor + earlier
                output_tensor.zero_()
                return None
            if self.kept is not None:
                input_tensor.view(self.shards, -1)[self.shard] += self.kept
                self.kept = None
            factor = self.part.gradient_divide_factor
            divisor = None
            if op == distributed.ReduceOp.AVG and factor is not None:
                # FSDP2 means the ranks of the shard group, which the factor equals.
                op, divisor = distributed.ReduceOp.SUM, factor
            elif op == distributed.ReduceOp.SUM and factor is None:
                divisor = self.replicas  # it divides by the ranks of the shard group itself
            reduce_shards(
                output_tensor, input_tensor, self.shards, op, self.everyone, priority="background"
            )
            if divisor is not None:
                output_tensor.div_(divisor)
            return None

    return FusedReduce
