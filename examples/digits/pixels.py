"""Draw digits pixel by pixel: a small language model whose layers can be spread over several nodes."""

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.data import TensorDataset

from digits.data import split
from oakum_worker.chain import Chain
from oakum_worker.task import Task

GREYS, PIXELS = 17, 64


class Embedding(nn.Module):
    """Vectors (n, 64, width) for the pixels that come before each pixel; `greys` (n, 64) are 0 to 16."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.greys = nn.Embedding(GREYS, width)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(PIXELS, width))

    def forward(self, greys: torch.Tensor) -> torch.Tensor:
        before = self.greys(greys[:, :-1])
        return torch.cat([self.first.expand(len(greys), -1, -1), before], 1) + self.positions


class Block(nn.Module):
    """Causal attention and a feed-forward network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(PIXELS), persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.layer(hidden, src_mask=self.mask, is_causal=True)


class Head(nn.Module):
    """Logits (n, 64, 17), by the embedding's own vectors: tied weights."""

    def __init__(self, embedding: Embedding, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.weight = embedding.greys.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(self.norm(hidden), self.weight)


class PixelModel(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = Embedding(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = Head(self.embedding, width)

    def forward(self, greys: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(greys)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def task(width: int = 48, depth: int = 6) -> Task:
    """What Oakum trains; the held-out images are evaluated every two epochs."""
    model = PixelModel(width, depth)
    chain = Chain(
        layers=[model.embedding, *model.blocks, model.head],
        inputs=lambda greys: greys,
        loss=lambda logits, greys: cross_entropy(logits.flatten(0, 1), greys.flatten()),
    )
    train, held_out = map(_greys, split())
    return Task(
        model=model,
        dataset=train,
        loss=chain,
        chain=chain,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        evaluate=lambda model: {"bits_per_pixel": _bits_per_pixel(model, held_out)},
        evaluate_every_epochs=2,
        collate=torch.stack,
    )


def _greys(images: TensorDataset) -> list[torch.Tensor]:
    return list((images.tensors[0].flatten(1) * 16).round().long())


def _bits_per_pixel(model: nn.Module, greys: list[torch.Tensor]) -> float:
    total = 0.0
    for batch in torch.stack(greys).split(120):
        total += float(cross_entropy(model(batch).flatten(0, 1), batch.flatten())) * len(batch)
    return total / len(greys) / math.log(2)
