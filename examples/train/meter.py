"""What a step spends in collectives, and what it sends over the neck, for any backend."""

import functools
import pathlib
import time

import torch.distributed as dist

# What FSDP2 calls, under its names of torch 2.13 and of the versions before.
COLLECTIVES = ("all_gather_single", "all_gather_into_tensor", "reduce_scatter_single",
               "reduce_scatter_tensor", "all_reduce", "broadcast", "barrier")
# The lab's link between the nodes, and what stands for it where there is no lab.
NECK = "rail0"
LOOPBACK = "lo"


class CommunicationMeter:
    """Adds up the time the caller spends inside torch.distributed's collectives.

    On CPU, FSDP2 issues each collective and waits for it in the same call, so this is the
    communication that no compute hides: waiting for slower ranks included. One thread only.
    """

    def __init__(self):
        self.seconds = 0.0
        self.calls = {}
        self.depth = 0
        self.originals = {}

    def __enter__(self):
        for name in COLLECTIVES:
            original = getattr(dist, name, None)
            if original is not None:
                self.originals[name] = original
                setattr(dist, name, self.timed(name, original))
        return self

    def __exit__(self, *_):
        for name, original in self.originals.items():
            setattr(dist, name, original)

    def timed(self, name, original):
        @functools.wraps(original)
        def call(*args, **kwargs):
            self.depth += 1
            begin = time.perf_counter()
            try:
                work = original(*args, **kwargs)
                if work is not None:
                    raise RuntimeError(f"{name} was called with async_op=True, but only time "
                                       "spent in blocking collectives is metered")
                return work
            finally:
                self.depth -= 1
                if self.depth == 0:
                    self.seconds += time.perf_counter() - begin
                    self.calls[name] = self.calls.get(name, 0) + 1
        return call

    def take(self):
        """The seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def neck_interface():
    """The interface that leads to the other node: the lab's, else the loopback."""
    return NECK if NECK in counters() else LOOPBACK


def counters():
    """Bytes sent so far by each interface of this network namespace."""
    sent = {}
    for line in pathlib.Path("/proc/self/net/dev").read_text().splitlines()[2:]:
        name, numbers = line.split(":", 1)
        sent[name.strip()] = int(numbers.split()[8])
    return sent


def neck_bytes_sent():
    return counters()[neck_interface()]
