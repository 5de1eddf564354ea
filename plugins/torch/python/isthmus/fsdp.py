"""HYBRID_SHARD for FSDP2 in one pipeline: sharded inside a node, replicated across nodes.

``hybrid_shard(module, mesh)`` stands where ``fully_shard(module, mesh=mesh)`` stands with a 2-D
mesh. FSDP2 then sees the shard dimension only, and gradients are reduced by one call: while one
piece crosses between the nodes, the next is reduced inside them. Natively a reduce-scatter is over
before the all-reduce begins. The call goes on while backward goes on, and is over when that ends.
"""

import collections
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


def hybrid_shard(module, mesh, *, in_flight=2, **kwargs):
    """fully_shard over the second dimension of ``mesh``, replicated over the first.

    module: as fully_shard takes it, and called as often: on each block, then on the root. mesh:
    a 2-D DeviceMesh of CPU ranks, (replicate, shard), whose groups are of isthmus; a shard
    group is best one node. in_flight: modules whose gradients may be under way while backward
    goes on, each of which holds its unsharded gradients; 0 ends every reduction before backward
    goes on. kwargs go to fully_shard. Parameters must be equal on all ranks before, as for
    fully_shard. With ``set_requires_all_reduce(False)`` the gradients of a micro-batch stay
    inside the shard group. Checkpoints and clip_grad_norm_ see the shard dimension, where
    replicas are equal. What is reduced yields to other operations between nodes, such as an
    all-gather that is under way (priority "background"). Returns the module. Raises ValueError
    for a mesh that does not fit.
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
    if in_flight < 0:
        raise ValueError(
            f"isthmus.fsdp.hybrid_shard: in_flight is {in_flight}, expected 0 or more modules."
        )
    everyone, under_way = _group_of(ranks)
    module = fully_shard(module, mesh=mesh[names[1]], **kwargs)
    part = module._get_fsdp_state()._fsdp_param_group
    if part is not None:
        fused = _fused()(part, mesh, everyone, under_way, in_flight)
        module.set_custom_reduce_scatter(fused)
    return module


def _group_of(ranks):
    """The group of these ranks and its reductions, one as long as the default group lives."""
    world = distributed.group.WORLD
    of_world, group, under_way = _groups.get(tuple(ranks), (None, None, None))
    if of_world is not world:
        group, under_way = world, _UnderWay()
        if ranks != distributed.get_process_group_ranks(world):
            group = distributed.new_group(ranks, use_local_synchronization=True)
        _groups[tuple(ranks)] = (world, group, under_way)
    isthmus._backend(group, "fsdp.hybrid_shard")
    return group, under_way


_groups = {}


class _UnderWay:
    """Reductions of one group that go on while backward does; the oldest first.

    Only the thread that runs backward calls it. A reduction that failed raises where it is waited
    for: out of backward().
    """

    def __init__(self):
        self.reductions = collections.deque()  # (owner, work, what the work reads, finish)

    def may_begin(self):
        """Whether a backward pass runs, at whose end all will have ended."""
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self.end)
        except RuntimeError:  # torch takes callbacks during backward only
            return False
        return True

    def add(self, owner, work, read, finish, limit):
        """finish() is called after the work: when more than limit go on, or backward ends."""
        self.reductions.append((owner, work, read, finish))
        while len(self.reductions) > limit:
            self._end_oldest()

    def end_of(self, owner):
        """Ends what owner began: a module that runs twice in a step is reduced twice."""
        while any(of is owner for of, *_ in self.reductions):
            self._end_oldest()

    def end(self):
        """Ends them all, also after one that failed; then raises the first failure."""
        failure = None
        while self.reductions:
            try:
                self._end_oldest()
            except RuntimeError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _end_oldest(self):
        _, work, _, finish = self.reductions.popleft()
        work.wait()
        finish()


def _flat_gradients(part, count):
    """What all gradients of this FSDP2 state are views of, if that has count elements; else None.

    FSDP2 binds a module's sharded gradients to the flat result of their first reduction, and adds
    later results to it in place.
    """
    grads = [parameter.sharded_param.grad for parameter in part.fsdp_params]
    if any(grad is None for grad in grads):
        return None
    storages = [grad.to_local().untyped_storage() for grad in grads]
    if any(storage.data_ptr() != storages[0].data_ptr() for storage in storages):
        return None
    first = grads[0].to_local()
    if storages[0].nbytes() != count * first.element_size():
        return None
    return torch.as_strided(first, (count,), (1,), 0)


class _FusedReduce:
    """What FSDP2 calls to reduce the gradients of one module."""

    def __init__(self, part, mesh, everyone, under_way, in_flight):
        self.part = part  # FSDP2's own state of the module
        self.everyone = everyone
        self.under_way = under_way
        self.in_flight = in_flight
        self.shards = mesh.size(1)
        self.replicas = mesh.size(0)
        self.shard = mesh.get_local_rank(1)
        self.kept = None  # sums of this node's earlier micro-batches

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        self.under_way.end_of(self)
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
        used_at_once = self._used_at_once(output_tensor, op)
        divisor = None
        if op == distributed.ReduceOp.AVG and factor is not None:
            # FSDP2 means the ranks of the shard group, which the factor equals.
            op, divisor = distributed.ReduceOp.SUM, factor
        elif op == distributed.ReduceOp.SUM and factor is None:
            divisor = self.replicas  # it divides by the ranks of the shard group itself
        if not used_at_once and self.under_way.may_begin():
            self._begin(output_tensor, input_tensor, op, divisor)
            return None
        self._reduce(output_tensor, input_tensor, op)
        if divisor is not None:
            output_tensor.div_(divisor)
        return None

    def _reduce(self, output, input, op, async_op=False):
        return reduce_shards(
            output, input, self.shards, op, self.everyone, async_op, priority="background"
        )

    def _used_at_once(self, output, op):
        """Whether FSDP2 or the program reads the result before backward ends."""
        part = self.part
        if self.in_flight == 0 or torch.compiler.is_compiling():
            return True
        if op == distributed.ReduceOp.SUM or part._all_reduce_hook is not None:
            return True  # it divides the result, or hands it to the hook
        if part._orig_dtype not in (None, output.dtype):
            return True  # it converts the result
        parameters = [parameter.sharded_param for parameter in part.fsdp_params]
        if any(getattr(one, "_post_accumulate_grad_hooks", None) for one in parameters):
            return True  # an optimizer in backward
        # It adds the result to gradients that are not of our making.
        return (
            any(one.grad is not None for one in parameters)
            and _flat_gradients(part, output.numel()) is None
        )

    def _begin(self, output, input, op, divisor):
        """Reduces while backward goes on; FSDP2 binds the gradients to output meanwhile."""
        earlier = _flat_gradients(self.part, output.numel())
        result = output
        if earlier is not None:
            # FSDP2 adds output to the gradients there are, now: that adds nothing.
            result = torch.empty_like(output)
            output.zero_()
        work = self._reduce(result, input, op, async_op=True)

        def finish():
            if divisor is not None:
                result.div_(divisor)
            if earlier is not None:
                earlier.add_(result)

        self.under_way.add(self, work, input, finish, self.in_flight)


@functools.cache
def _fused():
    """The class needs torch's base class, which releases before 2.9 do not have."""
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    return type("FusedReduce", (_FusedReduce, ReduceScatter), {})
