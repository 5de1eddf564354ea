"""What isthmus's time in a cell of compare.py's tables may be at most.

A limit is a share of the best peer's time, or of a bare kernel's where that is more: no library is
asked to be faster than the machine. Peers and kernels are those of the same run and core state.
"""

from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Cell:
    op: str
    ranks: int
    state: str  # of the cores: near, mid or far
    bytes: int
    best: float | None  # us of the fastest peer; of a half, of float32's same number of elements
    peers: dict = field(default_factory=dict)  # us of each
    private: float | None = None  # us of the fastest bare kernel on private buffers
    mapped: float | None = None  # on buffers that all ranks map
    floor: float | None = None  # of a torch call that moves nothing

    @property
    def near(self):
        return self.state == "near"


def _all_reduce_of_two(cell):
    size = cell.bytes
    if size <= 2 * KIB:
        return "1", cell.best, None if cell.near else 1.05
    if size <= 2 * MIB:
        if cell.near:
            return "3", cell.best / 1.2, 1.03
        return "3", cell.peers.get("impi", cell.best), 1.05
    return "4", cell.best / 2.2, None if cell.near else 1.05


def _all_reduce_of_many(cell):
    size, bare = cell.bytes, None if cell.near else 1.05
    if size <= 2 * KIB:
        return "6", cell.best * 0.6, bare
    if size < 32 * KIB:
        return None
    if size <= 2 * MIB:
        return "7", cell.best / 1.5, bare
    return "8", cell.best / (3 if size >= 32 * MIB else 2), bare


def cpp(cell):
    """C++, private buffers."""
    if cell.best is None:
        return None
    if cell.op != "all_reduce":
        # A bare kernel that a peer beats is not the machine's limit.
        limits = not cell.near and cell.private is not None and cell.private <= cell.best
        return "9", cell.best, 1.05 * cell.private if limits else None
    of_ranks = _all_reduce_of_two if cell.ranks == 2 else _all_reduce_of_many
    found = of_ranks(cell)
    if found is None:
        return None
    goal, us, factor = found
    return goal, us, None if factor is None or cell.private is None else factor * cell.private


def mapped(cell):
    """C++, buffers from our allocator."""
    if cell.best is None or cell.ranks != 2 or cell.bytes < 32 * KIB:
        return None
    small = cell.bytes <= 2 * MIB
    bare = 1.05 * cell.mapped if cell.mapped and (small or not cell.near) else None
    return "5", cell.best / (2.5 if small else 3.5), bare


def torch(cell):
    """torch.distributed, against Gloo."""
    gloo = cell.peers.get("gloo")
    if gloo is None:
        return None
    floor = 1.05 * cell.floor if cell.floor and not cell.near else None
    if cell.op != "all_reduce":
        return ("9", gloo / 10, floor) if cell.bytes <= 128 * KIB else None
    if cell.bytes <= 2 * KIB:
        return ("2", max(5.0, gloo / 20), floor) if cell.ranks == 2 else ("6", gloo / 100, floor)
    return ("4", gloo / 4, None) if cell.ranks == 2 and cell.bytes >= 8 * MIB else None


def half(cell):
    """16-bit types against float32: `best` is float32's time for as many elements."""
    return None if cell.best is None else ("half", 0.6 * cell.best, None)


def limit(kind, cell):
    """(goal's name, us at most), or None where nothing is asked."""
    found = kind(cell)
    if found is None:
        return None
    goal, us, bare = found
    return goal, max(us, bare or 0.0)
