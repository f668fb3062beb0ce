"""A stage: consecutive layers of a chain on one worker, and the micro-batches that are between F and B there.

What comes in is a leaf of the stage's own autograd graph, so the graph ends at the stage's boundaries, and
gradients of what came in are what the stage before needs to go on.

Backward may come in two parts (zero bubble): the gradients of the inputs first, those of the weights later
(`split_backward`). The graph stays in memory until the second.
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

Tensors = tuple[torch.Tensor, ...]


@dataclass
class _Saved:
    """What a micro-batch leaves at a stage from its forward to its backward."""

    inputs: Any
    outputs: Tensors | None
    """With their graph; None where it is computed again."""
    gradients: Tensors = ()
    """Of the outputs, for the second part of a split backward where the first has nothing to do."""
    rest: SecondPart | None = None
    """The second part of a split backward, after the first."""


class Stage:
    """Consecutive layers, and what they keep of micro-batches until backward, those of all pipes."""

    def __init__(self, chain: Chain, layers: range, *, recompute: bool = False) -> None:
        """To `recompute` keeps a micro-batch's inputs alone, and computes it again within backward.

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
        """Micro-batches of which something is kept."""
        return len(self._saved)

    def clear(self) -> None:
        """Forget the micro-batches of a step that broke off."""
        self._saved.clear()

    def forward(self, work: MicroBatches, number: int, inputs: Values | None = None) -> Values | None:
        """What the next stage is given: without a graph, and requiring gradients where backward needs them.

        `inputs` are what the stage before gave; the first stage asks the micro-batch. None from the last stage,
        which computes the loss.
        """
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
        """Add to the weights' gradients; returns those of the inputs that require them, for the stage before.

        `gradients` are of the outputs that require them; the last stage needs none.
        """
        saved = self._saved.pop(number)
        with work.drawing(number) as call:
            roots, seeds = self._roots(saved, gradients, work, number, call)
            if roots:
                torch.autograd.backward(roots, seeds)
        leaves = _leaves(saved.inputs)
        return tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)

    def backward_input(self, work: MicroBatches, number: int, gradients: Tensors = ()) -> Tensors:
        """The gradients of the inputs alone; those of the weights wait for `backward_weight`."""
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
            made, saved.rest = first_part(roots, seeds, leaves, self.parameters)
        return made

    def backward_weight(self, work: MicroBatches, number: int) -> None:
        """Add to the weights' gradients, after `backward_input`."""
        saved = self._saved.pop(number)
        with work.drawing(number) as call:
            if saved.rest is not None:
                saved.rest.run()
            elif not _leaves(saved.inputs):
                roots, seeds = self._roots(saved, saved.gradients, work, number, call)
                if roots:
                    torch.autograd.backward(roots, seeds)

    def _roots(
        self,
        saved: _Saved,
        gradients: Tensors,
        work: MicroBatches,
        number: int,
        call: Callable[..., Any],
    ) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
        """Where backward starts, and the gradients there; None for a loss."""
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
        """The layers' outputs, or the loss. Leaves nothing behind, as it may be called twice."""
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
    """The parameters of some of the layers that require gradients, each once, in their order."""
    found = (p for number in layers for p in chain.layers[number].parameters() if p.requires_grad)
    return list(dict.fromkeys(found))


def _check(values: Any, source: str) -> None:
    """Raise `TaskError` unless they can be sent."""
    parts = _parts(values)
    if not all(isinstance(part, torch.Tensor) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise TaskError(
            f"{source} returned {kinds}: what a layer is called with must be a tensor or a tuple of tensors"
        )


def _leaves(inputs: Any) -> Sequence[torch.Tensor]:
    return [value for value in _parts(inputs) if value.requires_grad]


def _copied(inputs: Any) -> Any:
    """The same values in memory of their own, with a gradient's way back to the originals."""
    copies = tuple(value.clone() for value in _parts(inputs))
    return copies if isinstance(inputs, tuple) else copies[0]


def _versions(inputs: Any) -> list[int]:
    return [value._version for value in _parts(inputs)]


def _parts(inputs: Any) -> tuple[torch.Tensor, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)
