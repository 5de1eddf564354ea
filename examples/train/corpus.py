"""Real text that every machine has: the source of Python's standard library."""

import dataclasses
import gzip
import hashlib
import pathlib
import sysconfig

import torch

# Installed packages and the library's own tests are not the library.
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
# Every 20th file is held out: none of it is trained on.
HELD_OUT_EVERY = 20
# The held-out text is taken from this many places of the held-out files.
HELD_OUT_SPANS = 16


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The text in two parts; `bytes` and `sha256` are of both together, in the order read."""

    train: torch.Tensor
    held_out: bytes
    files: int
    bytes: int
    sha256: str

    def batch(self, step, seed, shape):
        """The rows of one step, the same wherever they are asked for: int64, length + 1 wide."""
        generator = torch.Generator().manual_seed((seed << 20) + step)
        begins = torch.randint(len(self.train) - shape.length, (shape.batch,), generator=generator)
        return torch.stack([self.train[at:at + shape.length + 1] for at in begins]).long()

    def describe(self):
        return {"files": self.files, "bytes": self.bytes, "sha256": self.sha256,
                "train_bytes": len(self.train), "held_out_bytes": len(self.held_out)}


def load(held_out_bytes):
    """Reads the library in the order of the files' names; `held_out_bytes` of it are held out."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py")
                   if path.is_file() and not SKIPPED.intersection(path.relative_to(root).parts))
    texts = [(root / name).read_bytes() for name in names]
    if sum(map(len, texts)) < 20 * held_out_bytes:
        raise SystemExit(f"the Python library's source was expected in {root}, but its *.py files "
                         f"hold only {sum(map(len, texts))} bytes; install python3 in full")
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text)
    kept_back = b"".join(texts[HELD_OUT_EVERY - 1::HELD_OUT_EVERY])
    del texts[HELD_OUT_EVERY - 1::HELD_OUT_EVERY]
    train = b"".join(texts)
    return Corpus(train=torch.frombuffer(bytearray(train), dtype=torch.uint8),
                  held_out=spans(kept_back, held_out_bytes), files=len(names),
                  bytes=len(train) + len(kept_back), sha256=digest.hexdigest())


def spans(text, count):
    """`count` bytes of `text` from evenly spread places."""
    each = count // HELD_OUT_SPANS
    apart = len(text) // HELD_OUT_SPANS
    return b"".join(text[at * apart:at * apart + each] for at in range(HELD_OUT_SPANS))


def gzip_bits_per_byte(text):
    return 8 * len(gzip.compress(text, compresslevel=9, mtime=0)) / len(text)
