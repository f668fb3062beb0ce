"""Two models of a size that a GPU is busy with, and small ones of the same kinds."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

KINDS = ("transformer", "residual")


class _Words(nn.Module):
    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, max(width // 64, 1), 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = self.norms[0](self.first(images)).relu()
        result: torch.Tensor = (images + self.norms[1](self.second(inner))).relu()
        return result


def build(kind: str, *, tiny: bool) -> nn.Module:
    """A model of this kind, with the same weights each time."""
    torch.manual_seed(0)
    if kind == "transformer":
        return _Words(64, 1, 64) if tiny else _Words(768, 12, 32_000)
    channels, blocks = (8, 1) if tiny else (128, 12)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        *(_Block(channels) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 100),
    )


def samples(kind: str, count: int, *, tiny: bool) -> TensorDataset:
    """Random samples for a model of this kind: inputs and targets."""
    torch.manual_seed(1)
    if kind == "transformer":
        words, length = (64, 8) if tiny else (32_000, 256)
        tokens = torch.randint(words, (count, length))
        return TensorDataset(tokens, tokens.roll(-1, 1))
    side = 8 if tiny else 64
    return TensorDataset(torch.randn(count, 3, side, side), torch.randint(100, (count,)))


def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The mean cross-entropy of a batch, wherever the model is."""
    device = next(model.parameters()).device
    inputs, targets = (tensor.to(device, non_blocking=True) for tensor in batch)
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
