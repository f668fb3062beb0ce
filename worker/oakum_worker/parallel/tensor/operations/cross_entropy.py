"""Cross-entropy of logits whose classes are cut along one axis and whose rows along others.

Maximum, sum of exponentials and the target's logit are put together along the classes' axis, so no rank ever has a
row of all classes; the sum over the rows is put together along the rows' axes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from oakum_worker.parallel.tensor.grids import Axes
from oakum_worker.parallel.tensor.placements import Split
from oakum_worker.parallel.tensor.spread import RULES, Spread, Work, answer_uncut, arranged, block, closed, refuse
from oakum_worker.parallel.tensor.wires import Wires, sum_then_copy


def cross_entropy(
    work: Work,
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Rule for `F.cross_entropy` of logits (rows, classes), of which each rank has a block, and class numbers
    (rows,): returns the loss. Collective among the grid's ranks. Raises `TaskError` for class weights and for
    targets that are not class numbers."""
    func = F.cross_entropy
    if not isinstance(input, Spread) or not input.axes:
        arguments = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
        return answer_uncut(work, func, (input, target, weight), arguments)
    if weight is not None or target.is_floating_point() or input.ndim != 2:
        refuse(func, "but of logits (rows, classes) with class numbers (rows,) and without class weights")
    logits = _rows_cut(work, input)
    of_rows, of_classes = logits.splits
    assert of_rows is not None
    axes = of_classes.axes if of_classes is not None else ()
    classes = work.wires.own(logits.shape[1], axes)
    own_target = block(work, target, logits.shape[:1], (of_rows,), "whole")
    counts = own_target != ignore_index
    losses = _CrossEntropy.apply(
        logits.local, own_target, counts, work.wires, axes, classes, logits.shape[1], label_smoothing
    )
    if reduction == "none":
        return closed(losses, logits.shape[:1], (of_rows,), work)
    total = sum_then_copy(work.wires, losses.sum(), of_rows.axes)
    if reduction == "sum":
        return total
    return total / work.wires.reduce(counts.sum().to(total.dtype), of_rows.axes)


def _rows_cut(work: Work, logits: Spread) -> Spread:
    """The logits with their classes as one section, cut as evenly as their number allows along the axes that cut
    them before, so that all ranks agree which classes each one has. Raises `TaskError` where rows do not belong
    to samples, or where classes are cut as sections of a fused projection."""
    of_rows, of_classes = logits.splits
    if of_rows is None:
        refuse(F.cross_entropy, "of rows that do not belong to samples")
    if of_classes is not None:
        of_classes = Split(of_classes.axes, logits.shape[1])
    return arranged(logits, (of_rows, of_classes), logits.axes)


class _CrossEntropy(torch.autograd.Function):
    """Autograd function for the loss of each of a rank's rows, 0 for rows that do not count; collective along the
    axes by which classes are cut."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        counts: torch.Tensor,
        wires: Wires,
        axes: Axes,
        classes: range,
        num_classes: int,
        smoothing: float,
    ) -> torch.Tensor:
        wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        lowest = torch.finfo(wide.dtype).min
        own = wide.amax(1) if len(classes) else wide.new_full((len(wide),), lowest)
        highest = wires.reduce(own, axes, dist.ReduceOp.MAX)
        shifted = wide - highest.unsqueeze(1)
        exponentials = shifted.exp()
        here = (target >= classes.start) & (target < classes.stop) & counts
        place = (target - classes.start).clamp(0, max(0, len(classes) - 1)).unsqueeze(1)
        picked = shifted.gather(1, place).squeeze(1) * here if len(classes) else torch.zeros_like(highest)
        sums = [exponentials.sum(1), picked, *([shifted.sum(1)] if smoothing else [])]
        divisor, chosen, *rest = wires.reduce(torch.stack(sums), axes)
        losses = divisor.log() - chosen
        if smoothing:
            losses = (1 - smoothing) * losses + smoothing * (divisor.log() - rest[0] / num_classes)
        ctx.save_for_backward(exponentials / divisor.unsqueeze(1), place, here, counts)
        ctx.job = num_classes, smoothing, logits.dtype
        return losses * counts

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        probabilities, place, here, counts = ctx.saved_tensors
        num_classes, smoothing, dtype = ctx.job
        gradient = probabilities - smoothing / num_classes
        if gradient.shape[1]:
            gradient.scatter_add_(1, place, ((smoothing - 1) * here.to(gradient.dtype)).unsqueeze(1))
        gradient = gradient * (gradients[0] * counts).unsqueeze(1)
        return gradient.to(dtype), None, None, None, None, None, None, None


RULES[F.cross_entropy] = cross_entropy
