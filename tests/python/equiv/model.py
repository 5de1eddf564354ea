"""The model, its data and the bookkeeping that every case of equiv.py shares."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn

RANK = int(os.environ.get("RANK", "0"))
SIZE = int(os.environ.get("WORLD_SIZE", "1"))

LEARNING_RATE = 0.1
MOMENTUM = 0.9
_SEED = 7
_DATA_SEED = 1000
_HEAD_WIDTH = 32


@dataclass(frozen=True)
class Shape:
    width: int
    layers: int
    vocabulary: int
    length: int


SHAPES = {
    "tiny": Shape(width=128, layers=4, vocabulary=512, length=32),
    "base": Shape(width=512, layers=16, vocabulary=8192, length=64),
}


class Embedding(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Parameter(torch.randn(shape.length, shape.width) * 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        heads = [
            layer(h).unflatten(-1, (-1, _HEAD_WIDTH)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def build(shape: Shape) -> nn.Sequential:
    """The same parameters on every call and rank."""
    torch.manual_seed(_SEED)
    return nn.Sequential(
        Embedding(shape),
        *[Block(shape.width) for _ in range(shape.layers)],
        nn.LayerNorm(shape.width),
        nn.Linear(shape.width, shape.vocabulary, bias=False),
    )


def batch(shape: Shape, count: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step: inputs and targets."""
    generator = torch.Generator().manual_seed(_DATA_SEED + step)
    tokens = torch.randint(shape.vocabulary, (count, shape.length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM, foreach=False)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Equal exactly when all bits are."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def start(backend: str, timeout_s: int) -> None:
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))


class Exchange:
    """Gathers objects through the rendezvous store, never through the backend under test."""

    def __init__(self, limit_s: int) -> None:
        self._store = dist.distributed_c10d._get_default_store()
        self._store.set_timeout(timedelta(seconds=limit_s))
        self._round = 0

    def __call__(self, mine: Any) -> list[Any]:
        self._round += 1
        self._store.set(f"equiv/{self._round}/{RANK}", pickle.dumps(mine))
        keys = (f"equiv/{self._round}/{rank}" for rank in range(SIZE))
        return [pickle.loads(self._store.get(key)) for key in keys]
