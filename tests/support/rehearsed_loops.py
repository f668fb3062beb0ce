"""Loops of scripts over small data sets: what depends on the number of nodes, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import oakum
from oakum_worker.gathering import gather_batch, own_rows
from oakum_worker.randomness import keyed
from oakum_worker.session.hosts import HOST, RankHost
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.turns import turns_alone

SAMPLES, BATCH, WIDTH, CLASSES, VOCABULARY = 40, 12, 8, 3, 16
STEPS = -(-SAMPLES // BATCH)

Body = Callable[[Any, Any, nn.Module], None]
"""The passes of an iteration: (session, batch, model)."""


@pytest.fixture(autouse=True)
def one_thread_and_fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(keyed, "_warned", set())
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class Points(torch.utils.data.Dataset[Any]):
    """Vectors with a class each."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        self.vectors = torch.randn(SAMPLES, WIDTH, generator=draw)
        self.classes = torch.randint(CLASSES, (SAMPLES,), generator=draw)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.vectors[index], self.classes[index]


class Noisy(Points):
    """Vectors with noise from a generator that the data set keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.vectors[index] + float(self.rng.normal()), self.classes[index]


class Texts(torch.utils.data.Dataset[Any]):
    """Sequences of 3 to 17 tokens, from 1 on."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        lengths = torch.randint(3, 18, (SAMPLES,), generator=draw).tolist()
        self.texts = [torch.randint(1, VOCABULARY, (length,), generator=draw) for length in lengths]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.texts[index]


class Stream:
    """The texts as a stream, which is read from any place on."""

    def __len__(self) -> int:
        return SAMPLES

    def samples(self, epoch: int, start: int) -> Iterator[torch.Tensor]:
        return iter(Texts().texts[start:])


def padded(texts: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(texts, batch_first=True)


def padded_in_front(texts: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence([one.flip(0) for one in texts], batch_first=True).flip(1)


def classifier(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), *layers, nn.ReLU(), nn.Linear(16, CLASSES))


class Language(nn.Module):
    """Predicts each next token by causal attention with dropout, or by packed recurrent layers."""

    def __init__(self, *, recurrent: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        self.layers = nn.LSTM(16, 16, 2, dropout=0.3, batch_first=True) if recurrent else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        if self.layers is not None:
            lengths = (tokens != 0).sum(1)
            packed = pack_padded_sequence(hidden, lengths, batch_first=True, enforce_sorted=False)
            hidden, _ = pad_packed_sequence(self.layers(packed)[0], batch_first=True, total_length=tokens.shape[1])
            return self.head(hidden)
        heads = hidden.unflatten(-1, (2, -1)).transpose(1, 2)
        mask = (tokens != 0)[:, None, None] & torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        mixed = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask, dropout_p=0.2)
        return self.head(hidden + mixed.transpose(1, 2).flatten(2))


class Centred(nn.Module):
    """Subtracts a mean that it keeps of what it has seen."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - self.mean
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return centred


def next_tokens(model: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the tokens' losses, and their number."""
    targets = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
    logits = model(tokens[:, :-1]).transpose(1, 2)
    return F.cross_entropy(logits, targets, reduction="sum", ignore_index=-100), (targets != -100).sum()


def mean(session: Any, batch: Any, model: nn.Module) -> None:
    session.backward(F.cross_entropy(model(batch[0]), batch[1]))


def total(session: Any, batch: Any, model: nn.Module) -> None:
    session.backward(F.cross_entropy(model(batch[0]), batch[1], reduction="sum"))


WEIGHTS = torch.tensor([1.0, 8.0, 1.0])


def by_class(session: Any, batch: Any, model: nn.Module) -> None:
    session.backward(F.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS))


def by_class_with_weight(session: Any, batch: Any, model: nn.Module) -> None:
    loss = F.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS, reduction="sum")
    session.backward(loss, weight=WEIGHTS[batch[1]].sum())


def by_token(session: Any, batch: Any, model: nn.Module) -> None:
    loss, count = next_tokens(model, batch)
    session.backward(loss / count)


def by_token_with_weight(session: Any, batch: Any, model: nn.Module) -> None:
    loss, count = next_tokens(model, batch)
    session.backward(loss, weight=count)


def among_own(session: Any, batch: Any, model: nn.Module) -> None:
    out = F.normalize(model(batch[0]), dim=1)
    session.backward(F.cross_entropy(out @ out.T / 0.1, torch.arange(len(out))))


def among_all(session: Any, batch: Any, model: nn.Module) -> None:
    out = F.normalize(model(batch[0]), dim=1)
    session.backward(F.cross_entropy(out @ gather_batch(out).T / 0.1, own_rows(out)))


def mixed_by_numpy(session: Any, batch: Any, model: nn.Module) -> None:
    factors = torch.tensor(np.random.uniform(0.5, 1.5, (len(batch[0]), 1)), dtype=torch.float32)
    session.backward(F.cross_entropy(model(batch[0] * factors), batch[1]))


def with_a_gradient_of_all(session: Any, batch: Any, model: nn.Module) -> None:
    out = model(batch[0])
    shared = out.mean().square()
    session.backward(F.cross_entropy(out, batch[1]) + shared - shared.detach())


def in_half_precision(session: Any, batch: Any, model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(batch[0]), batch[1])
    session.backward(loss)


def of_rounded_logits(session: Any, batch: Any, model: nn.Module) -> None:
    session.backward(F.cross_entropy(model(batch[0].double()).float(), batch[1]))


def evaluated_norm(session: Any, batch: Any, model: nn.Module) -> None:
    model.train()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.eval()
    mean(session, batch, model)


def train(body: Body, model: nn.Module, dataset: Any = None, **options: Any) -> list[float]:
    """Losses of the steps of a plain loop."""
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with oakum.session(model, optimizer, dataset or Points(), **({"batch_size": BATCH} | options)) as session:
        for batch in session:
            body(session, batch, model)
            if session.step():
                losses.append(session.loss)
    return losses


def as_trainer(body: Body, model: nn.Module, **fields: Any) -> list[float]:
    """The same as the only rank of a trainer that may have more."""
    spec = TrainerSpec.model_validate(
        {"name": "loop", "script": "loop.py", "epochs": 1, "global_batch": BATCH} | fields
    )
    token = HOST.set(RankHost(spec, turns_alone, lambda: None))
    try:
        return train(body, model, batch_size=None)
    finally:
        HOST.reset(token)


def with_a_small_term(session: Any, batch: Any, model: nn.Module) -> None:
    """As a mixture of experts balances their loads: by a product of means over the batch."""
    out = model(batch[0])
    loads = F.one_hot(out.argmax(1), CLASSES).double().mean(0) * out.softmax(1).mean(0)
    session.backward(F.cross_entropy(out, batch[1]) + 1e-3 * loads.sum())


def sharpness_aware(session: Any, batch: Any, model: nn.Module) -> None:
    loss = F.cross_entropy(model(batch[0]), batch[1])
    with torch.no_grad():
        for p, slope in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
            p.add_(slope)
    mean(session, batch, model)


def under_autocast(session: Any, batch: Any, model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        by_token(session, batch, model)
