"""A stage: consecutive layers of a chain on one worker, and its micro-batches between forward and backward.

A stage's inputs are leaves of its own autograd graph, so each graph ends at the stage's boundaries. The gradients
of the inputs are what the stage before needs for its backward pass.

Backward may be split in two parts (`split_backward`): gradients of the inputs first, those of the weights later.
The graph stays in memory until the second part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from oakum_worker.chain import Chain, Values
from oakum_worker.errors import TaskError
from oakum_worker.parallel.pipeline.engine import MicroBatches
from oakum_worker.parallel.pipeline.split_backward import SecondPart, first_part
from oakum_worker.torch_internals import tensor_version

Tensors = tuple[torch.Tensor, ...]


@dataclass
class _Saved:
    """What a stage keeps of a micro-batch from its forward to its backward pass."""

    inputs: Any
    outputs: Tensors | None
    """The outputs with their autograd graph; None where they are recomputed."""
    gradients: Tensors = ()
    """Gradients of the outputs, for a split backward pass whose first part has nothing to do."""
    rest: SecondPart | None = None
    """The second part of a split backward pass, once the first has run."""


class Stage:
    """Consecutive layers of a chain on one worker. Computes their forward and backward passes, and keeps what each
    micro-batch needs in between."""

    def __init__(self, chain: Chain, layers: range, *, recompute: bool = False) -> None:
        """With `recompute`, only a micro-batch's inputs are kept, and its outputs are computed again during
        backward.

        BatchNorm then updates its running statistics twice for each micro-batch.
        """
        self._chain = chain
        self._layers = layers
        self._recompute = recompute
        self.is_first = layers.start == 0
        self.is_last = layers.stop == len(chain.layers)
        self.parameters = parameters_of(chain, layers)
        self._saved: dict[int, _Saved] = {}
        # The first micro-batch tells both.
        self._outputs_require: tuple[bool, ...] | None = None
        self._changes_inputs: bool | None = None

    @property
    def num_live(self) -> int:
        """Number of micro-batches of which something is kept."""
        return len(self._saved)

    def clear(self) -> None:
        """Discard the micro-batches of an interrupted step."""
        self._saved.clear()

    def forward(self, work: MicroBatches, number: int, inputs: Values | None = None) -> Values | None:
        """Compute a micro-batch's forward pass; returns the next stage's inputs, or None from the last stage.

        `inputs` are the outputs of the stage before; the first stage takes them from `work`. The result has no
        graph, and requires gradients where backward needs them. The last stage computes the loss.
        """
        if self.is_first or self.is_last:
            work.prepare(number)  # here, where nothing answers for draws yet
        given = inputs
        if inputs is None:
            given = work.inputs(number)
            _check(given, "the chain's `inputs`")
        if self._recompute and self.is_last:
            self._saved[number] = _Saved(given, None)  # backward comes next
            return None
        with_graph = not self._recompute or self._outputs_require is None
        with torch.set_grad_enabled(with_graph), work.drawing(number) as call:
            values = call(self._run, work, number, given)
        outputs = values if isinstance(values, tuple) else (values,)
        if self._outputs_require is None:
            self._outputs_require = tuple(output.requires_grad for output in outputs)
        self._saved[number] = _Saved(given, None if self._recompute else outputs)
        if self.is_last:
            return None
        handed = tuple(
            output.detach().requires_grad_(required)
            for output, required in zip(outputs, self._outputs_require, strict=True)
        )
        return handed if isinstance(values, tuple) else handed[0]

    def backward(self, work: MicroBatches, number: int, gradients: Tensors = ()) -> Tensors:
        """Compute the backward pass: add the weights' gradients, return those of the inputs for the stage before.

        `gradients` are those of the outputs that require them; the last stage needs none.
        """
        saved = self._saved.pop(number)
        with work.drawing(number) as call:
            roots, seeds = self._roots(saved, gradients, work, number, call)
            if roots:
                torch.autograd.backward(roots, seeds)
        self._done(work, number)
        leaves = _leaves(saved.inputs)
        return tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)

    def backward_input(self, work: MicroBatches, number: int, gradients: Tensors = ()) -> Tensors:
        """First part of a split backward pass: return the inputs' gradients. `backward_weight` does the rest."""
        saved = self._saved[number]
        leaves = _leaves(saved.inputs)
        if not leaves:
            saved.gradients = gradients
            return ()
        with work.drawing(number) as call:
            roots, seeds = self._roots(saved, gradients, work, number, call)
            saved.outputs = None
            if not roots:
                return tuple(torch.zeros_like(leaf) for leaf in leaves)
            of_inputs, saved.rest = first_part(roots, seeds, leaves, self.parameters)
        return of_inputs

    def backward_weight(self, work: MicroBatches, number: int) -> None:
        """Second part of a split backward pass: add the weights' gradients."""
        saved = self._saved.pop(number)
        with work.drawing(number) as call:
            if saved.rest is not None:
                saved.rest.run()
            elif not _leaves(saved.inputs):
                roots, seeds = self._roots(saved, saved.gradients, work, number, call)
                if roots:
                    torch.autograd.backward(roots, seeds)
        self._done(work, number)

    def _done(self, work: MicroBatches, number: int) -> None:
        # Where a worker has both ends of the chain, the first forward pass and the last backward pass lie before
        # the end of either's backward pass.
        if self.is_first or self.is_last:
            work.forget(number)

    def _roots(
        self,
        saved: _Saved,
        gradients: Tensors,
        work: MicroBatches,
        number: int,
        call: Callable[..., Any],
    ) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
        """(tensors from which the backward pass starts, their gradients). In the last stage the tensor is the
        loss, and the gradients are None. Computes the outputs again where they were not kept."""
        if saved.outputs is None:
            values = call(self._run, work, number, saved.inputs)
            saved.outputs = values if isinstance(values, tuple) else (values,)
        if self.is_last:
            return list(saved.outputs), None
        assert self._outputs_require is not None
        asked = [output for output, required in zip(saved.outputs, self._outputs_require, strict=True) if required]
        pairs = [pair for pair in zip(asked, gradients, strict=True) if pair[0].requires_grad]
        return [output for output, _ in pairs], [gradient for _, gradient in pairs]

    def _run(self, work: MicroBatches, number: int, inputs: Any) -> Any:
        """The outputs of the stage's layers; in the last stage the micro-batch's loss. Changes nothing that a
        second call would see, since with recomputation it is called twice. Raises `TaskError` for outputs that
        cannot be sent."""
        # A layer that works in place must find neither a leaf nor what is needed again.
        given = inputs if self._changes_inputs is False else _copied(inputs)
        versions = _versions(given)
        outputs = self._chain.run(self._layers, given)
        if self._changes_inputs is None:
            self._changes_inputs = _versions(given) != versions
        if self.is_last:
            return work.loss(outputs, number)
        last = self._layers.stop - 1
        _check(outputs, f"layer {last} ({type(self._chain.layers[last]).__name__})")
        return outputs


def parameters_of(chain: Chain, layers: range) -> list[nn.Parameter]:
    """The parameters of `layers` that require gradients, each once, in order."""
    trained = (p for number in layers for p in chain.layers[number].parameters() if p.requires_grad)
    return list(dict.fromkeys(trained))


def _check(values: Any, source: str) -> None:
    """Raise `TaskError` unless `values`, made by `source`, are a tensor or a tuple of tensors."""
    parts = _parts(values)
    if not all(isinstance(part, torch.Tensor) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise TaskError(
            f"{source} returned {kinds}: what a layer is called with must be a tensor or a tuple of tensors"
        )


def _leaves(inputs: Any) -> Sequence[torch.Tensor]:
    return [value for value in _parts(inputs) if value.requires_grad]


def _copied(inputs: Any) -> Any:
    """Copies of the inputs, through which gradients flow back to the originals."""
    copies = tuple(value.clone() for value in _parts(inputs))
    return copies if isinstance(inputs, tuple) else copies[0]


def _versions(inputs: Any) -> list[int]:
    return [tensor_version(value) for value in _parts(inputs)]


def _parts(inputs: Any) -> tuple[torch.Tensor, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)
