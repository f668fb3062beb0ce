"""What a task's `loss` returns: the mean over the batch's samples, or a total and the weight to divide it by.

Samples differ in their number of tokens, weighted classes and so on. A mean over such items is no mean of samples'
losses, and a rank cannot weight its part before all ranks have counted their items. Such a loss returns
(total, weight), and the global batch's loss is the sum of all ranks' totals over the sum of their weights. A mean
m of n samples equals (n m, n).

For a global batch of n samples, gradients of totals are added up with the factor 1 / n, which keeps them about as
large as gradients of a mean. When the sum of all weights is known, they are multiplied by n / weight once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from oakum_worker.errors import TaskError

Weight = torch.Tensor | float
LossValue = torch.Tensor | tuple[torch.Tensor, Weight]
"""A mean over samples, or a total and its weight; tensors of shape ()."""
NOT_ALWAYS_A_TOTAL = (
    "the loss returned a mean for some samples and a total with its weight for others: return the same kind for "
    "every batch, such as (0 * logits.sum(), 0) where nothing counts"
)


class Loss(NamedTuple):
    """A micro-batch's loss as its task returned it."""

    value: torch.Tensor
    """The mean over the samples if `weight` is None, else the total; shape (), with a graph."""
    weight: Weight | None = None
    """The divisor of the total, 0 or above; a tensor of it has shape () and no graph."""

    @property
    def mean(self) -> float:
        """The mean loss of this micro-batch alone."""
        value = self.value.item()
        return value if self.weight is None else value * to_mean(1, float(self.weight))


def loss_of(returned: Any) -> Loss:
    """The `Loss` in what a task's `loss` returned: a mean, or a pair (total, weight). Raises `TaskError` if
    `returned` is neither."""
    if isinstance(returned, tuple) and len(returned) != 2:
        raise TaskError(f"the loss is a tuple of {len(returned)}: return a mean, or a pair (total, weight)")
    value = returned[0] if isinstance(returned, tuple) else returned
    if value is None:
        raise TaskError("loss returned None (is a `return` missing?): return the mean over the batch's samples")
    if not isinstance(value, torch.Tensor):
        raise TaskError(f"the loss is a {type(value).__name__}: return the tensor, without `.item()`")
    if value.ndim or not value.requires_grad:
        raise TaskError(
            f"the loss has shape {tuple(value.shape)} and requires_grad={value.requires_grad}: return the "
            "mean over the batch's samples, a scalar that depends on the model's parameters, or a pair of such a "
            "total and its weight"
        )
    return Loss(value, _checked(returned[1]) if isinstance(returned, tuple) else None)


def to_mean(num_samples: int, weight: float) -> float:
    """The factor `num_samples / weight`: it turns the sum of all totals / `num_samples` into the mean loss.

    1 where the losses are means, whose weight is the number of samples. 0 where the weight is 0, as in a batch of
    padding alone, which has nothing to learn from. Raises `TaskError` for a weight below 0.
    """
    if weight < 0:
        raise TaskError(
            f"the weights that the loss returned with its totals add up to {weight:g}: return what the total is "
            "to be divided by, such as the number of tokens counted"
        )
    return num_samples / weight if weight else 0.0


def _checked(weight: Any) -> Weight:
    if isinstance(weight, torch.Tensor):
        if weight.ndim or weight.requires_grad or weight.is_complex():
            raise TaskError(
                f"the loss's weight has shape {tuple(weight.shape)} and requires_grad={weight.requires_grad}: "
                "return a scalar that does not depend on the model's parameters, such as the number of tokens"
            )
        return weight
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise TaskError(f"the loss's weight is a {type(weight).__name__}: return a number or a tensor of one")
    return float(weight)
