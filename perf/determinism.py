#!/usr/bin/env python3
"""Whether a sum of 24 fixed tensors has the same bits on any number of ranks, and what it takes.

One rank of a job, started as by torchrun or mpirun; rank 0 prints lines
library,ranks,length,sha256,milliseconds. A longer message is cut to the first LENGTHS[0] elements
before it is hashed, so that one hash in all lines of a library is what determinism means.

    determinism.py LIBRARY      isthmus, gloo or openmpi; ISTHMUS_DETERMINISTIC=1 changes the first

isthmus takes the tensors as they are; the others get their sum on the rank, added in order.
"""

import ctypes
import hashlib
import os
import statistics
import sys
import time

import torch

OPERANDS = 24
LENGTHS = (50_000, 1 << 20)
ROUNDS = 5


class OpenMpi:
    """MPI_Allreduce of the library that mpirun belongs to."""

    def __init__(self):
        self.lib = ctypes.CDLL("libmpi.so", mode=ctypes.RTLD_GLOBAL)
        self.lib.MPI_Init(None, None)
        self.rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        self.size = int(os.environ["OMPI_COMM_WORLD_SIZE"])

    def handle(self, name):
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.lib, name)))

    def reduce(self, tensors):
        total = added(tensors)
        in_place = ctypes.c_void_p(1)
        code = self.lib.MPI_Allreduce(
            in_place,
            ctypes.c_void_p(total.data_ptr()),
            ctypes.c_int(total.numel()),
            self.handle("ompi_mpi_float"),
            self.handle("ompi_mpi_op_sum"),
            self.handle("ompi_mpi_comm_world"),
        )
        assert code == 0, code
        return total

    def close(self):
        self.lib.MPI_Finalize()


class Torch:
    """A backend of torch.distributed."""

    def __init__(self, backend):
        import torch.distributed as dist

        dist.init_process_group(backend)
        self.dist = dist
        self.takes_several = backend == "isthmus"
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def reduce(self, tensors):
        if self.takes_several:
            import isthmus

            output = torch.empty_like(tensors[0])
            isthmus.all_reduce_contributions(output, tensors)
            return output
        total = added(tensors)
        self.dist.all_reduce(total)
        return total

    def close(self):
        self.dist.destroy_process_group()


def added(tensors):
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def operands():
    generator = torch.Generator().manual_seed(OPERANDS)
    scale = 10.0 ** (torch.arange(LENGTHS[-1]) % 4)
    return [torch.randn(LENGTHS[-1], generator=generator) * scale for _ in range(OPERANDS)]


def main():
    name = sys.argv[1]
    library = OpenMpi() if name == "openmpi" else Torch(name)
    mode = ", deterministic" if os.environ.get("ISTHMUS_DETERMINISTIC") == "1" else ""
    own = OPERANDS // library.size
    mine = operands()[library.rank * own :][:own]
    for length in LENGTHS:
        tensors = [tensor[:length].clone() for tensor in mine]
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            result = library.reduce(tensors)
            times.append(1000 * (time.perf_counter() - start))
        words = result[: LENGTHS[0]].view(torch.uint8).numpy().tobytes()
        if library.rank == 0:
            text = hashlib.sha256(words).hexdigest()[:16]
            median = statistics.median(times)
            print(f'"{name}{mode}",{library.size},{length},{text},{median:.2f}', flush=True)
    library.close()


if __name__ == "__main__":
    main()
