"""Times a model's matrix products, and the rest of its passes, on this node."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from oakum_worker.devices import undisturbed_clock
from oakum_worker.errors import TaskError
from oakum_worker.function_mode import call, opened
from oakum_worker.losses import loss_of
from oakum_worker.parallel.grids.costs import GridProfile, Product, product_s, rising_points
from oakum_worker.parallel.pipeline.measuring import moments_of
from oakum_worker.state.boundary import BoundarySnapshot
from oakum_worker.task import Task
from oakum_worker.task_checks import describe
from oakum_worker.torch_internals import tree_leaves

_BUDGET_S = 1.5
"""Seconds after which no larger micro-batch is timed."""
_SIZES = (1, 4, 16, 64)
_PASSES = 3
_HALVINGS = 4
"""How often a product's sides are halved for smaller ones to time: each time an eighth of its multiplications."""


def measure_products(
    task: Task, most_samples: int, precision: Callable[[], AbstractContextManager[Any]], *, averages: bool = False
) -> GridProfile:
    """Time passes of up to `most_samples` samples, and products of their sizes and smaller ones. Returns the
    measurements.

    Takes two seconds or so. The task is left unchanged. With `averages`, the trainer's weight averages count in
    the state's bytes. Raises `TaskError` where the task's loss cannot be computed for any size.
    """
    began_s = time.monotonic()
    noted = BoundarySnapshot(task)
    noted.take()
    passes: dict[int, _Passes] = {}
    fault: Exception | None = None
    try:
        with torch.random.fork_rng(devices=[]):
            for size in (size for size in _SIZES if size == 1 or size <= most_samples):
                if passes and time.monotonic() - began_s > _BUDGET_S:
                    break
                try:
                    passes[size] = _Passes(task, size, precision)
                except Exception as error:
                    fault = error
    finally:
        noted.restore()
        for parameter in task.model.parameters():
            parameter.grad = None
    if not passes:
        raise TaskError(f"the task's loss cannot be computed: it raised {describe(fault)}") from fault  # type: ignore[arg-type]
    return _profile(task, passes, averages=averages)


def _profile(task: Task, passes: dict[int, _Passes], *, averages: bool) -> GridProfile:
    largest = max(passes)
    pass_ = passes[largest]
    device = next(task.model.parameters()).device
    products = tuple(dataclasses.replace(one, rows=one.rows / largest) for one in pass_.products)
    shapes = {(int(one.rows), one.inner, one.columns) for one in pass_.products}
    speed = rising_points(
        [point for shape in sorted(shapes) for point in _time_products(shape, pass_.dtype, device)]
    )
    parameter_bytes = sum(p.nbytes for p in task.model.parameters() if p.requires_grad)
    speed = speed or ((1.0, 1e-9),)
    others = []
    for size, timed in passes.items():
        products_s = sum(one.num_passes * product_s(speed, one.flops(size)) for one in products)
        # What cannot be told from the products' own spread is taken for a tenth of the whole.
        others.append((size, max(timed.seconds - products_s, timed.seconds / 10)))
    return GridProfile(
        products=products,
        speed=speed,
        others_s=tuple(others),
        itemsize=pass_.dtype.itemsize,
        parameter_bytes=parameter_bytes,
        optimizer_bytes=round(parameter_bytes * (moments_of(task.optimizer) + averages)),
        activation_bytes=pass_.kept_bytes / largest,
        input_bytes=pass_.input_bytes / largest,
    )


class _Passes:
    """The forward and backward pass of one micro-batch size: which products it has, how long it takes, and how
    much memory it keeps."""

    def __init__(self, task: Task, size: int, precision: Callable[[], AbstractContextManager[Any]]) -> None:
        batch = task.read([0] * size)
        self.products: list[Product] = []
        """In the order of execution; rows are those of all samples."""
        self.input_bytes = sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))
        self.dtype = torch.float32
        self.kept_bytes = 0
        with ProductNotes(self.note):
            self._run(task, batch, precision)
        self.seconds = min(self._run(task, batch, precision) for _ in range(_PASSES))

    def note(self, inputs: torch.Tensor, weight: torch.Tensor) -> None:
        """Remember the product of a linear layer, from its input and its weight."""
        columns, inner = weight.shape
        self.products.append(Product(inputs.numel() // inner, inner, columns, inputs.requires_grad))
        self.dtype = inputs.dtype

    def _run(self, task: Task, batch: Any, precision: Callable[[], AbstractContextManager[Any]]) -> float:
        kept: dict[int, int] = {}
        own = {tensor.untyped_storage().data_ptr() for tensor in task.model.parameters()}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        clock = undisturbed_clock(next(task.model.parameters()).device)
        began_s = clock()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision():
            loss = loss_of(task.loss(task.model, batch)).value
        loss.backward()
        self.kept_bytes = sum(kept.values())
        return clock() - began_s


class ProductNotes(TorchFunctionMode):
    """Function mode that tells of the products of all linear layers that are called in it."""

    def __init__(self, note: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        """`note` is called with a product's input and its weight."""
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and isinstance(args[0], torch.Tensor) and args[1].ndim == 2:
            self._note(args[0], args[1])
        if func is F.multi_head_attention_forward:
            with self:
                return opened(func)(*args, **(kwargs or {}))
        return call(self, func, args, kwargs or {})


def _time_products(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[float, float]]:
    """Yield (multiplications, seconds) for a product of this shape, and for products whose sides are half, a
    quarter and an eighth as long."""
    clock = undisturbed_clock(device)
    for halving in range(_HALVINGS):
        rows, inner, columns = (max(1, side >> halving) for side in shape)
        first = torch.zeros(rows, inner, dtype=dtype, device=device)
        second = torch.zeros(inner, columns, dtype=dtype, device=device)
        seconds = []
        for _ in range(_PASSES):
            began_s = clock()
            torch.mm(first, second)
            seconds.append(clock() - began_s)
        yield float(rows * inner * columns), min(seconds)
