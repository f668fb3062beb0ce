"""What a sample draws does not depend on how far the samples that are computed with it make it be padded."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cells import each
from oakum_worker.randomness import keyed
from oakum_worker.randomness.sample_randomness import SampleRandomness

CPU = torch.device("cpu")
WIDTH, HEADS, SAMPLES = 8, 2, 3
LENGTHS = 5, 7, 11
"""As long as the samples are, and padded further; one is a multiple of the number of samples nowhere."""

Function = Callable[[torch.Tensor], torch.Tensor]


def causal(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class Attend(nn.Module):
    """Causal self-attention, in which no place sees those behind it, and so none of the padding."""

    def __init__(self, *, need_weights: bool, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.4, batch_first=batch_first)
        self.need_weights, self.batch_first = need_weights, batch_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        mask = causal(x.shape[1 if self.batch_first else 0])
        made = self.attention(x, x, x, need_weights=self.need_weights, attn_mask=mask)[0]
        return made if self.batch_first else made.transpose(0, 1)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def attend(x: torch.Tensor) -> torch.Tensor:
    q = heads(x)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.4, is_causal=True).transpose(1, 2).flatten(2)


def attend_eagerly(x: torch.Tensor) -> torch.Tensor:
    q = heads(x)
    scores = (q @ q.transpose(-2, -1)).masked_fill(causal(x.shape[1]), -torch.inf)
    return (F.dropout(scores.softmax(-1), 0.4) @ q).transpose(1, 2).flatten(2)


class Encode(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.3, batch_first=batch_first)
        self.batch_first = batch_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        made = self.layer(x, src_mask=causal(x.shape[1 if self.batch_first else 0]), is_causal=True)
        return made if self.batch_first else made.transpose(0, 1)


class Recur(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


def channels(layer: Function) -> Function:
    return lambda x: layer(x.transpose(1, 2)).transpose(1, 2)


FUNCTIONS: dict[str, Callable[[], Function]] = {
    "dropout": lambda: lambda x: F.dropout(x, 0.4),
    "dropout of channels and places": lambda: channels(lambda x: F.dropout(x, 0.4)),
    "dropout of tokens, one after the other": lambda: lambda x: F.dropout(x.reshape(-1, WIDTH), 0.4).view_as(x),
    "dropout of places, sequence first": lambda: lambda x: F.dropout(x.transpose(0, 1), 0.4).transpose(0, 1),
    "dropout1d": lambda: channels(lambda x: F.dropout1d(x, 0.4)),
    "noise": lambda: lambda x: x + torch.randn_like(x),
    "a mask of places": lambda: lambda x: x * torch.bernoulli(torch.full(x.shape[:2], 0.6))[..., None],
    "whole numbers": lambda: lambda x: x * torch.randint(1, 9, x.shape[:2])[..., None],
    "attention": lambda: attend,
    "attention, eager": lambda: attend_eagerly,
    "MultiheadAttention": lambda: Attend(need_weights=False, batch_first=True),
    "MultiheadAttention with weights": lambda: Attend(need_weights=True, batch_first=True),
    "MultiheadAttention with weights, sequence first": lambda: Attend(need_weights=True, batch_first=False),
    "TransformerEncoderLayer": lambda: Encode(batch_first=True),
    "TransformerEncoderLayer, sequence first": lambda: Encode(batch_first=False),
    "convolution and dropout": lambda: nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Dropout(0.4), nn.Flatten(1, 2)),
    "LSTM with dropout between its layers": Recur,
}


@pytest.fixture(autouse=True)
def _no_warning_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "_warned", set())


@each("name", FUNCTIONS)
def test_a_sample_draws_the_same_however_far_its_batch_is_padded(name: str) -> None:
    torch.manual_seed(0)
    function, inputs = FUNCTIONS[name](), torch.randn(SAMPLES, LENGTHS[-1], WIDTH, dtype=torch.float32)

    def made(length: int) -> torch.Tensor:
        with SampleRandomness(CPU, always=True).samples(5, 0, SAMPLES) as call:
            return call(function, inputs[:, :length].clone())[:, : LENGTHS[0]].detach()

    whole = made(LENGTHS[-1])
    assert not torch.equal(whole, function(inputs)[:, : LENGTHS[0]])
    for length in LENGTHS:
        torch.testing.assert_close(made(length), whole, rtol=1e-5, atol=1e-6)
    assert not keyed.has_warned()


@each("sizes", [(12, 64, 64), (3, 96, 96), (2048, 64), (4, 8, 16, 32), (2, 3, 5, 7, 11, 13)])
def test_no_two_elements_of_a_sample_have_one_number(sizes: tuple[int, ...]) -> None:
    numbers = keyed._numbers(sizes, CPU)
    assert numbers.shape == sizes
    assert len(numbers.unique()) == numbers.numel()


def test_places_in_rows_and_columns_are_dropped_independently() -> None:
    """No pattern of rows and columns remains in a mask: neighbours, and the corners of rectangles, agree by chance
    alone."""
    with SampleRandomness(CPU).samples(5, 0, 64):
        kept = F.dropout(torch.ones(64, 4, 48, 48, dtype=torch.float64), 0.5) > 0
    signs = kept.double() * 2 - 1
    for down, right in ((0, 1), (1, 0), (1, 1), (3, 7)):
        here = signs[..., : 48 - down, : 48 - right]
        other = signs[..., down:, right:]
        pairs = here * other
        corners = pairs * signs[..., down:, : 48 - right] * signs[..., : 48 - down, right:]
        for product in (pairs, corners) if down and right else (pairs,):
            assert abs(float(product.mean())) < 5 / product.numel() ** 0.5


def test_tables_of_elements_do_not_grow_with_every_combination_of_sizes() -> None:
    kept: dict[tuple[torch.device, int], torch.Tensor] = {}
    before, keyed._tables = keyed._tables, kept
    try:
        for sizes in ((1, 4000), (4000, 1), (100, 100), (60, 60)):
            assert keyed._elements(sizes, CPU).shape == sizes
        assert kept[CPU, 2].numel() <= 4 * 100 * 100
    finally:
        keyed._tables = before


def test_ranks_in_threads_of_one_process_share_the_tables() -> None:
    made: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda n=n: made.append(keyed._elements((n, n), CPU)))  # type: ignore[misc]
        for n in range(1, 40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in made:
        assert torch.equal(one, keyed._hash(keyed._numbers(one.shape, CPU)))
