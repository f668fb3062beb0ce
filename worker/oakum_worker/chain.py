"""A model as a chain of layers, for trainers whose model is spread over several ranks.

    chain = Chain(
        layers=[model.embedding, *model.blocks, model.head],
        inputs=lambda batch: batch["tokens"],
        loss=lambda logits, batch: cross_entropy(logits.flatten(0, 1), batch["targets"].flatten()),
    )
    return Task(model=model, dataset=..., optimizer=..., loss=chain, chain=chain)

Each layer is called with what the layer before it returned: a tensor or a tuple of tensors, with samples along
the first dimension. A parameter that two layers share (tied weights) stays one parameter. The random numbers that
a layer draws depend on seed, step, sample and layer, so dropout does not depend on which rank has which layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from oakum_worker.errors import TaskError
from oakum_worker.losses import LossValue
from oakum_worker.randomness.sample_randomness import begin_layer

Values = torch.Tensor | tuple[torch.Tensor, ...]
"""What goes from one layer to the next."""
COMPUTE_WITHIN = "compute_within"
"""Name of the method that a sharded model has: `model.compute_within(function, values)` returns
`function(values)`, with the parameters gathered as they are within the model's own `forward`."""


@dataclass
class Chain:
    """The layers of a model in order, with the functions before and after them. A chain can be a task's `loss`."""

    layers: Sequence[nn.Module]
    """Modules of the task's model. A sharded trainer replaces them, as it trains another object in each
    generation."""
    inputs: Callable[[Any], Any]
    """`inputs(batch)`: what the first layer is called with, a tensor or a tuple of tensors."""
    loss: Callable[[Any, Any], LossValue]
    """`loss(output, batch)`, with the last layer's output: the mean loss over the batch's samples, a scalar; or a
    total and its weight, as `Task.loss` may return them."""

    def __call__(self, model: nn.Module, batch: Any) -> LossValue:
        """The loss of the batch, with all layers computed in this process: the chain's own, which have to be those
        of `model`."""
        run = partial(self.run, range(len(self.layers)))
        values = self.inputs(batch)
        within = getattr(model, COMPUTE_WITHIN, None)
        output = run(values) if within is None else within(run, values)
        return self.end(output, batch)

    def run(self, layers: range, values: Any) -> Any:
        """The output of the consecutive `layers`; the first is called with `values`.

        Raises `TaskError` where a layer other than the chain's last returns neither a tensor nor a tuple.
        """
        for number in layers:
            begin_layer(number)
            layer = self.layers[number]
            values = layer(*values) if isinstance(values, tuple) else layer(values)
            if number + 1 < len(self.layers) and not isinstance(values, (torch.Tensor, tuple)):
                raise TaskError(
                    f"layer {number} of the chain ({type(layer).__name__}) returned a {type(values).__name__}: "
                    "return a tensor or a tuple of tensors"
                )
        return values

    def end(self, output: Any, batch: Any) -> LossValue:
        """The loss that the chain's `loss` computes from the last layer's `output`."""
        begin_layer(len(self.layers))
        return self.loss(output, batch)
