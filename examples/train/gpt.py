"""A small GPT over bytes: pre-norm blocks, rotary positions, no biases, float32."""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional

BYTES = 256
ROTARY_BASE = 1000.0
# The byte itself and the ones before it, each with a table of its own: a head start on n-grams.
TABLES = 3


@dataclasses.dataclass(frozen=True)
class Shape:
    """The model's size, and the batch it is trained with: `batch` rows of `length` bytes."""

    layers: int
    width: int
    heads: int
    length: int
    batch: int
    held_out_bytes: int


SHAPES = {
    "full": Shape(layers=4, width=240, heads=6, length=128, batch=12, held_out_bytes=1 << 16),
    "tiny": Shape(layers=2, width=32, heads=2, length=32, batch=8, held_out_bytes=1 << 12),
}


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.mix = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x, cosine, sine):
        rows, length, width = x.shape
        parts = (part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
                 for part in self.mix(x).split(width, dim=-1))
        query, key, value = parts
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cosine, sine), rotate(key, cosine, sine), value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and around a residual."""

    def __init__(self, shape):
        super().__init__()
        width = shape.width
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(shape)
        self.feed_norm = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.down(functional.gelu(self.up(self.feed_norm(x))))


class GPT(nn.Module):
    """Maps rows of bytes to the logits of each next byte; the seed decides every weight."""

    def __init__(self, shape, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.length = shape.length
        self.tables = nn.ModuleList(nn.Embedding(BYTES, shape.width) for _ in range(TABLES))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, BYTES, bias=False)
        cosine, sine = rotary(shape.length, shape.width // shape.heads)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:
            for layer in (block.attention.out, block.down):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, rows):
        length = rows.shape[1]
        x = self.tables[0](rows)
        for back, table in enumerate(self.tables[1:], start=1):
            x = x + table(functional.pad(rows, (back, 0))[:, :length])
        for block in self.blocks:
            x = block(x, self.cosine[:length], self.sine[:length])
        return self.head(self.norm(x))


def rotary(length, width):
    """The cosines and sines of every position's rotation, `length` rows of `width` / 2."""
    rate = ROTARY_BASE ** -(torch.arange(0, width, 2) / width)
    angle = torch.outer(torch.arange(length), rate)
    return angle.cos(), angle.sin()


def rotate(x, cosine, sine):
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, left * sine + right * cosine), dim=-1)


def loss_of(model, rows, reduction="mean"):
    """Cross entropy in nats of each row's bytes but the first, given those before them."""
    logits = model(rows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(),
                                    reduction=reduction)


@torch.no_grad()
def nats_of(model, text, part=0, parts=1):
    """Nats and number of bytes scored in this part of `text`, in windows of the model's length."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    windows = data.unfold(0, model.length + 1, model.length)[part::parts]
    nats = sum(loss_of(model, rows, reduction="sum").item() for rows in windows.split(16))
    return nats, windows.shape[0] * model.length


@torch.no_grad()
def generate(model, prompt, count, seed, temperature=0.7):
    """`count` characters that continue `prompt`, drawn with a seed of their own."""
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt.encode())
    for _ in range(count):
        logits = model(torch.tensor([text[-model.length:]]))[0, -1]
        chances = functional.softmax(logits / temperature, dim=-1)
        text.append(int(torch.multinomial(chances, 1, generator=generator)))
    # One character per byte, also where the model does not write valid UTF-8.
    return bytes(text).decode("latin-1")[-count:]
