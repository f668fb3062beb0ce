"""Dropout between the layers of torch's recurrent functions, drawn for each sample.

The functions draw for a whole micro-batch at once. Here they compute one layer at a time, and what goes from one
to the next is dropped in between. In packed sequences nothing tells which sample a row belongs to, so they are
left to the layers of `oakum_worker.recurrent`, which know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Drop = Callable[[torch.Tensor, float], torch.Tensor]


def one_layer_at_a_time(
    function: Callable[..., Any],
    drop: Drop,
    input: torch.Tensor,
    states: Any,
    parameters: Any,
    has_biases: Any,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: Any = None,
) -> Any:
    """What `torch.lstm`, `torch.gru` and their like return for padded sequences, computed layer by layer, with
    `drop` between the layers. `drop` is called with a tensor of shape (batch, steps, features) and the
    probability.

    Returns `NotImplemented` where nothing is to be dropped, or where the sequences are packed.
    """
    if isinstance(has_biases, Sequence) or batch_first is None or not train or dropout == 0 or num_layers == 1:
        return NotImplemented
    directions, each = (2 if bidirectional else 1), len(parameters) // num_layers
    of_lstm = isinstance(states, Sequence)
    last: list[Sequence[torch.Tensor]] = []
    for layer in range(num_layers):
        if layer > 0:
            by_sample = input if batch_first else input.transpose(0, 1)
            dropped = drop(by_sample, dropout)
            input = dropped if batch_first else dropped.transpose(0, 1)
        own = slice(layer * directions, (layer + 1) * directions)
        before = [state[own] for state in states] if of_lstm else states[own]
        mine = parameters[layer * each : (layer + 1) * each]
        input, *after = function(input, before, mine, has_biases, 1, 0.0, train, bidirectional, batch_first)
        last.append(after)
    return input, *(torch.cat(parts) for parts in zip(*last, strict=True))
