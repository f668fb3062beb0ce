"""What tensor-parallel trainers train in tests: transformers whose widths and heads a cube divides."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from oakum_worker.chain import Chain
from oakum_worker.task import Task
from training_ranks import NUM_SAMPLES

NUM_WORDS, LENGTH, WIDTH = 12, 6, 16


class Words(Dataset):
    """53 sentences."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        self._all = torch.randint(NUM_WORDS, (NUM_SAMPLES, LENGTH + 1), generator=generator)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._all[index]


class Block(nn.Module):
    """Attention and two linear layers on a residual stream."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.into, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.before(hidden)
        hidden = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
        return hidden + self.drop(self.out(F.gelu(self.into(self.after(hidden)))))


class Transformer(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUM_WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def next_word(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def build_words_task(num_layers: int = 2, dropout: float = 0.1) -> Task:
    """A language model in float64 with AdamW, two groups of parameters and a schedule."""
    torch.manual_seed(6)
    model = Transformer(num_layers, dropout).double()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=100)
    return Task(model=model, dataset=Words(), loss=next_word, optimizer=optimizer, scheduler=scheduler)


class Head(nn.Module):
    """Normalised logits, by the embedding's own matrix."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(WIDTH), words.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(hidden), self.weight)


def next_word_loss(logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def first_words(batch: torch.Tensor) -> torch.Tensor:
    return batch[:, :-1]


def build_chain_task(num_layers: int = 4, dropout: float = 0.1) -> Task:
    """A language model that names its layers, the first and the last of which share a matrix."""
    torch.manual_seed(8)
    words = nn.Embedding(NUM_WORDS, WIDTH)
    model = nn.Sequential(words, *(Block(dropout) for _ in range(num_layers)), Head(words)).double()
    chain = Chain(layers=list(model), inputs=first_words, loss=next_word_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    task = Task(model=model, dataset=Words(), loss=chain, chain=chain, optimizer=optimizer)
    task.evaluate = sums
    return task


def sums(model: nn.Module) -> dict[str, float]:
    """Metrics for an evaluation: sums over everything that the model has, and a loss."""
    model(torch.zeros(2, LENGTH, dtype=torch.int64))
    return {name: float(value.double().square().sum()) for name, value in model.state_dict().items()}


def build_evaluated_words_task() -> Task:
    """The language model with an evaluation after each epoch."""
    task = build_words_task()
    task.evaluate = sums
    return task
