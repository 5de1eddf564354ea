"""Goal: the shim of this torch works. Method: two processes of it call each kind of operation.

Usage: python tests/long/torch_smoke.py; torch and isthmus are what Python's path leads to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from datetime import timedelta

SIZE = 2
LIMIT_S = 120


def collectives(rank: int) -> None:
    import torch
    import torch.distributed as dist

    value = torch.arange(1000.0) + rank
    dist.all_reduce(value)
    assert torch.equal(value, 2 * torch.arange(1000.0) + 1), value
    gathered = torch.empty(6, dtype=torch.int64)
    dist.all_gather_into_tensor(gathered, torch.full((3,), rank))
    assert gathered.tolist() == [0, 0, 0, 1, 1, 1], gathered
    part = torch.empty(2, dtype=torch.bfloat16)
    dist.reduce_scatter_tensor(part, torch.arange(4, dtype=torch.bfloat16), dist.ReduceOp.AVG)
    assert part.tolist() == [2.0 * rank, 2.0 * rank + 1], part
    blocks = torch.empty(2)
    dist.all_to_all_single(blocks, torch.tensor([10.0 * rank, 10.0 * rank + 1]))
    assert blocks.tolist() == [rank, 10 + rank], blocks
    factor = dist._make_nccl_premul_sum(3.0)
    dist.all_reduce(part.zero_().add_(1), op=factor)
    assert part.tolist() == [6.0, 6.0], part


def messages(rank: int) -> None:
    import torch
    import torch.distributed as dist

    value = torch.full((5,), rank)
    if rank == 0:
        dist.send(value, 1)
    else:
        assert dist.recv(value) == 0 and value.tolist() == [0] * 5, value
    given, got = torch.full((3,), float(rank)), torch.empty(3)
    both = [dist.P2POp(dist.isend, given, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    assert got.tolist() == [1.0 - rank] * 3, got
    objects = [{"from": 1}, "text"] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [{"from": 1}, "text"], objects
    dist.barrier()


def works(rank: int) -> None:
    """Futures, callbacks, DDP, and a group beside the first."""
    import torch
    import torch.distributed as dist

    work = dist.all_reduce(torch.ones(3), async_op=True)
    after = work.get_future().then(lambda future: future.value()[0] * 10)
    work.wait()
    assert after.wait().tolist() == [20.0] * 3
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    model(torch.full((1, 4), float(rank))).backward()
    assert model.module.weight.grad.tolist() == [[0.5] * 4]
    group = dist.new_group([0, 1], timeout=timedelta(seconds=30))
    outputs = [torch.empty(2), torch.empty(2)]
    dist.all_gather(outputs, torch.full((2,), float(rank)), group=group)
    assert [out.tolist() for out in outputs] == [[0.0] * 2, [1.0] * 2], outputs
    dist.destroy_process_group(group)


def errors() -> None:
    """Exceptions made in the shim arrive as the types that torch's users catch."""
    import torch
    import torch.distributed as dist

    try:
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
    except NotImplementedError as error:
        assert "BAND on float32 is not supported" in str(error), error
    else:
        raise AssertionError("a bitwise and of floats was taken")
    try:
        dist.send(torch.ones(1), 1 - dist.get_rank(), tag=-5)
    except ValueError as error:
        assert "tags from 0" in str(error), error
    else:
        raise AssertionError("a negative tag was taken")


def run_rank(rank: int, store: str) -> None:
    warnings.simplefilter("ignore")
    import torch.distributed as dist

    import isthmus

    dist.init_process_group("isthmus", store=dist.FileStore(store, SIZE), rank=rank,
                            world_size=SIZE, timeout=timedelta(seconds=60))
    collectives(rank)
    messages(rank)
    works(rank)
    errors()
    isthmus.monitored_barrier()
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [subprocess.Popen([sys.executable, __file__, str(rank), store],
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
                 for rank in range(SIZE)]
        try:
            codes = [rank.wait(LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
    if any(codes):
        raise SystemExit(f"the ranks ended with {codes}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_rank(int(sys.argv[1]), sys.argv[2])
    else:
        main()
