"""What a script's loop has computed of some samples, and what else has changed meanwhile.

BatchNorm computes with its running statistics while it is watched, whatever the script sets, since its own would
differ by design.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from oakum_worker.errors import TrainingWarning
from oakum_worker.losses import to_mean
from oakum_worker.randomness import keyed
from oakum_worker.randomness.batch_dims import BatchDims, Seen
from oakum_worker.randomness.counters import mix
from oakum_worker.rehearsal.batch_norm import has_statistics, with_running_statistics
from oakum_worker.rehearsal.hidden_state import HiddenState, changes
from oakum_worker.rehearsal.passes import states_elsewhere
from oakum_worker.task import Task
from oakum_worker.torch_internals import BatchNorm, tensor_version, tree_leaves

_MOST_ELEMENTS = 1 << 16
"""Elements of a gradient that are looked at."""
_NUM_SUMS = 8


class Sketch(NamedTuple):
    """A tensor in so few numbers that a copy of the process can tell them."""

    sums: list[float]
    """Of each eighth of its elements, with random factors."""
    norm: float

    @property
    def sum(self) -> float:
        """Of all its elements, with random factors."""
        return sum(self.sums)


@dataclass
class Passage:
    """What the loop's body computed of some samples."""

    num_samples: int
    loss: float = math.nan
    """The mean over the samples, or over the items of the weights."""
    weight: float = 0.0
    """Samples, or the sum of the weights."""
    tolerance: float = 0.0
    """Relative difference of losses that rounding explains."""
    is_total: bool = False
    """Whether the loss was given with a weight."""
    gradients: dict[str, Sketch] = field(default_factory=dict)
    """Parameter -> its gradient, in short."""
    lengths: list[list[int]] = field(default_factory=list)
    """Shapes of the batch's tensors, without the first dimension."""
    unkeyed: list[str] = field(default_factory=list)
    """Warnings of draws that belong to no single sample."""
    draws: Seen = field(default_factory=dict)
    """The passes' drawing calls, and where the samples may lie in what they draw."""
    draws_elsewhere: bool = False
    """Whether NumPy's or Python's generator was drawn from."""
    gathers: bool = False
    """Whether the loss saw the whole global batch by `gather_batch`."""
    normalised: list[str] = field(default_factory=list)
    """BatchNorm layers that would have computed with the samples' own statistics."""
    is_comparable: bool = True
    """Whether no layer normalised by the samples that were computed."""
    moved: list[str] = field(default_factory=list)
    """Generators of the script's own that were drawn from."""
    unlike: str | None = None
    """How a sample differed when it was read again."""
    changes_weights: bool = False
    """Whether the loop has changed trained weights before its step."""
    buffers: dict[str, float] = field(default_factory=dict)
    """Buffers of other layers that changed -> the sum of their elements with random factors."""


class Watched:
    """Observes what changes while the loop's body computes some samples. Until it is closed, BatchNorm normalises
    with its running statistics."""

    def __init__(self, task: Task, num_samples: int, dims: BatchDims) -> None:
        self.passage = Passage(num_samples)
        self._task = task
        self._hidden = [
            HiddenState.of_model(task.model, [task.collate]),
            HiddenState.of_data_set(task.dataset),
        ]
        self._before = [hidden.take() for hidden in self._hidden]
        self._elsewhere: list[Any] = []
        self._stack = contextlib.ExitStack()
        self._draws = self._stack.enter_context(dims.observed())
        self._warned = self._stack.enter_context(_warnings_of_draws())
        self._normalised = self._stack.enter_context(with_running_statistics(task.model))
        self._buffers = _buffers(task.model)
        self._versions = _versions(task.model)

    def take_batch(self, batch: Any) -> None:
        """Note the batch's shapes and the state of other generators than torch's, just before the loop's body
        runs."""
        leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        self.passage.lengths = [list(leaf.shape[1:]) for leaf in leaves]
        self._elsewhere = states_elsewhere()

    def close(self) -> None:
        """Put everything back."""
        self._stack.close()

    def end(
        self, loss: float, weight: float, computed: Mapping[int, torch.Tensor], *, is_total: bool, gathers: bool
    ) -> Passage:
        """What the body has computed; `computed` has the gradients by the parameters' ids."""
        unkeyed, normalised = list(self._warned), list(self._normalised)
        self.close()
        factor = to_mean(self.passage.num_samples, weight)
        gradients = {
            name: sketch(name, computed[id(p)] * factor)
            for name, p in self._task.model.named_parameters()
            if id(p) in computed
        }
        before = self._buffers
        buffers = {
            name: sketch(name, now).sum
            for name, now in _buffers(self._task.model).items()
            if name in before and not torch.equal(now, before[name])
        }
        moved = [
            change.where
            for hidden, taken in zip(self._hidden, self._before, strict=True)
            for change in changes(taken, hidden.take())
            if change.is_generator
        ]
        return dataclasses.replace(
            self.passage,
            loss=loss,
            weight=weight,
            is_total=is_total,
            gathers=gathers,
            gradients=gradients,
            unkeyed=unkeyed,
            draws=self._draws,
            draws_elsewhere=states_elsewhere() != self._elsewhere,
            normalised=normalised,
            is_comparable=all(has_statistics(self._task.model, name) for name in normalised),
            moved=moved,
            changes_weights=_versions(self._task.model) != self._versions,
            buffers=buffers,
        )


@contextlib.contextmanager
def _warnings_of_draws() -> Iterator[set[str]]:
    """Context that collects what is warned of draws that belong to no sample, in place of warning."""
    with warnings.catch_warnings(), keyed.fresh_warnings() as messages:
        warnings.simplefilter("ignore", TrainingWarning)
        yield messages


def _versions(model: nn.Module) -> list[int]:
    return [tensor_version(p) for p in model.parameters() if p.requires_grad]


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the buffers of layers other than BatchNorm."""
    return {
        f"{prefix}.{name}" if prefix else name: buffer.detach().clone()
        for prefix, module in model.named_modules()
        if not isinstance(module, BatchNorm)
        for name, buffer in module.named_buffers(recurse=False)
    }


def sketch(name: str, tensor: torch.Tensor) -> Sketch:
    """The tensor in short, with factors that depend on the name alone."""
    elements = tensor.detach().reshape(-1)
    if elements.is_sparse:
        elements = elements.to_dense()
    elements = elements[:: -(-elements.numel() // _MOST_ELEMENTS) or 1].to("cpu", torch.float64)
    generator = torch.Generator().manual_seed(mix(*name.encode()) >> 1)
    products = elements * torch.randn(elements.shape, generator=generator, dtype=torch.float64)
    return Sketch([float(products[n::_NUM_SUMS].sum()) for n in range(_NUM_SUMS)], float(elements.norm()))


def passage_of(document: dict[str, Any]) -> Passage:
    """The passage that `dataclasses.asdict` and JSON have made `document` of."""
    gradients = {name: Sketch(*one) for name, one in document.pop("gradients").items()}
    return Passage(**document, gradients=gradients)
