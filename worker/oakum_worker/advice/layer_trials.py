"""Measures time and memory of the algorithms of one layer, and compares their results with those of the layer
as built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from oakum_worker.advice.algorithms import (
    AS_BUILT,
    COMPILED,
    Algorithm,
    Forward,
    Unsuitable,
    algorithms,
    forward_replaced,
)
from oakum_worker.advice.units import AttentionCalls, Unit
from oakum_worker.devices import undisturbed_clock
from oakum_worker.profiling.alternating import compare
from oakum_worker.profiling.live_memory import LiveMemory
from oakum_worker.task_checks import describe
from oakum_worker.torch_internals import tree_leaves

_TURN_S, _MOST_PASSES = 0.005, 10
"""How long an algorithm is timed in its turn: until so many seconds or passes."""
_ENOUGH_S = 1.0
"""After so many seconds the algorithms of a layer have no further turns."""
TOLERANCE = 2e-3
"""Largest difference from the layer as built, beside the largest value: sums in another order differ by less."""


@dataclass(frozen=True, slots=True)
class LayerTrial:
    """The measured time and memory of one algorithm of a layer, for one number of samples."""

    algorithm: str
    seconds: float
    """A forward and backward pass."""
    kept_bytes: int
    """Kept from the forward to the backward pass, the output included."""
    buffer_bytes: int
    """Further bytes of tensors at the peak of either pass. What a library takes within one operation is unseen; of
    torch.compile it is the buffer of the layer as built."""
    difference: float
    """Largest difference of output and gradients from the layer as built, beside the largest value."""


@dataclass(frozen=True, slots=True)
class SkippedAlgorithm:
    """An algorithm that was not measured, and why."""

    algorithm: str
    why: str


@dataclass(frozen=True, slots=True)
class _Runnable:
    """An algorithm that has been found to compute the layer correctly, with the memory that it takes."""

    algorithm: str
    forward: Forward
    kept_bytes: int
    buffer_bytes: int
    difference: float


def try_unit(unit: Unit, *, compiles: bool) -> tuple[list[LayerTrial], list[SkippedAlgorithm]]:
    """Measure all algorithms of the unit, in turn, on the arguments that it was called with. Returns (trials,
    skipped algorithms).

    The layer as built is the first of the trials. An algorithm that raises, or differs by more than
    `TOLERANCE`, is skipped by name. Leaves the module as it was, without gradients.
    """
    module = unit.module
    mode = module.training
    runnable: list[_Runnable] = []
    skipped: list[SkippedAlgorithm] = []
    try:
        attends = _attends(module, unit)
        module.eval()
        expected = _values(module, unit)
        for algorithm in algorithms(module, attends=attends, compiles=compiles):
            try:
                runnable.append(_runnable(algorithm, unit, expected, training=mode))
            except Unsuitable as reason:
                skipped.append(SkippedAlgorithm(algorithm.name, str(reason)))
            except Exception as error:
                if algorithm.name == AS_BUILT:
                    raise
                skipped.append(SkippedAlgorithm(algorithm.name, _why_not(error)))
        compared = compare(runnable, partial(_seconds, unit), enough_s=_ENOUGH_S)
    finally:
        module.train(mode)
        _forget_gradients(module)
    trials = [
        LayerTrial(one.algorithm, compared.seconds[one], one.kept_bytes, one.buffer_bytes, one.difference)
        for one in runnable
    ]
    return trials, skipped


def _attends(module: nn.Module, unit: Unit) -> bool:
    """Whether the module computes scaled dot-product attention."""
    called: list[bool] = []
    with AttentionCalls(lambda: called.append(True)):
        _forward(module, unit)
    return bool(called)


def _why_not(error: Exception) -> str:
    """In words for people."""
    message = str(error)
    if "No available kernel" in message or "No viable backend" in message:
        return "has no kernel for this layer on this device"
    return f"does not run here: {describe(error).splitlines()[0][:160]}"


def _runnable(algorithm: Algorithm, unit: Unit, expected: list[torch.Tensor], *, training: bool) -> _Runnable:
    """The algorithm with its memory, after comparing its results with those of the layer as built. Raises
    `Unsuitable` if they differ or the algorithm cannot be used, and whatever the algorithm raises."""
    module = unit.module
    forward = algorithm.of(module)
    with forward_replaced(module, forward):
        module.eval()  # dropout draws by another algorithm may differ, and are no difference of results
        difference = _difference(_values(module, unit), expected)
        if difference > TOLERANCE:
            raise Unsuitable(f"gives results that differ by {difference:.2g} of the largest value")
        module.train(training)
        kept, buffer = _memory(module, unit)
        if algorithm.name == COMPILED:
            kept = _kept_compiled(module, unit)
        _pass(module, unit)  # compiles and warms up
    return _Runnable(algorithm.name, forward, kept, buffer, difference)


def _arguments(unit: Unit) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
    """(the call's arguments, its keyword arguments, the floating-point tensors among the arguments). These
    tensors are detached from earlier graphs and require gradients."""
    leaves: list[torch.Tensor] = []

    def fresh(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        leaf = value.detach().requires_grad_(True)
        leaves.append(leaf)
        return leaf

    arguments = tuple(fresh(one) for one in unit.call.arguments)
    return arguments, dict(unit.call.keywords), leaves


def _forward(module: nn.Module, unit: Unit) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Call the module with the unit's arguments, of which floating-point tensors are detached and require
    gradients. Returns (the first tensor with a gradient that the module returns, these tensors). Raises
    `Unsuitable` if the module returns no tensor with a gradient."""
    arguments, keywords, leaves = _arguments(unit)
    returned = module(*arguments, **keywords)
    outputs = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not outputs:
        raise Unsuitable("returns nothing that has a gradient")
    return outputs[0], leaves


def _values(module: nn.Module, unit: Unit) -> list[torch.Tensor]:
    """The module's output and all gradients, for a gradient of the output that is always the same."""
    _forget_gradients(module)
    torch.manual_seed(0)
    output, leaves = _forward(module, unit)
    generator = torch.Generator().manual_seed(1)
    output.backward(torch.randn(output.shape, generator=generator).to(output))
    parameters = [p.grad for p in module.parameters() if p.grad is not None]
    return [
        one.detach().clone() for one in (output, *(leaf.grad for leaf in leaves), *parameters) if one is not None
    ]


def _difference(values: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    if len(values) != len(expected):
        return float("inf")
    # A gradient that is 0 but for rounding, as of a key's bias, is compared at the scale of the others.
    least = 0.01 * max((float(one.abs().max()) for one in expected if one.numel()), default=0.0)
    largest = 0.0
    for one, other in zip(values, expected, strict=True):
        if one.shape != other.shape or not one.isfinite().all():
            return float("inf")
        if other.numel():
            scale = max(float(other.abs().max()), least, 1e-30)
            largest = max(largest, float((one - other).abs().max()) / scale)
    return largest


def _memory(module: nn.Module, unit: Unit) -> tuple[int, int]:
    """(bytes that are kept between the forward and the backward pass, further bytes that the passes take at
    their peak)."""
    _give_gradients(module)
    with LiveMemory() as memory:
        memory.count(p for p in module.parameters())
        memory.count(p.grad for p in module.parameters() if p.grad is not None)
        arguments, _, leaves = _arguments(unit)
        memory.count(leaf for leaf in tree_leaves(list(arguments)) if isinstance(leaf, torch.Tensor))
        before = memory.live_bytes
        output, leaves = _forward(module, unit)
        kept = memory.live_bytes - before
        output.backward(torch.ones_like(output))
        peak = memory.peak_bytes - before
    del leaves
    return kept, max(peak - kept, 0)


def _kept_compiled(module: nn.Module, unit: Unit) -> int:
    """Bytes that a compiled layer keeps between the passes. They are counted without watching its operations,
    since watching would switch the compiled code off."""
    output, leaves = _forward(module, unit)
    return kept_bytes(output, [*module.parameters(), *module.buffers(), *leaves])


def kept_bytes(output: torch.Tensor, others: Iterable[torch.Tensor]) -> int:
    """Bytes of the output and of all tensors that its autograd graph keeps for the backward pass, except the
    memory of `others`."""
    counted = {other.untyped_storage().data_ptr() for other in others}
    nodes_to_visit, visited = [output.grad_fn], set()
    tensors = [output]
    while nodes_to_visit:
        node = nodes_to_visit.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        saved = (
            getattr(node, name) for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"
        )
        tensors += [leaf for leaf in tree_leaves(list(saved)) if isinstance(leaf, torch.Tensor)]
        nodes_to_visit += [following for following, _ in node.next_functions]
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        total += 0 if storage.data_ptr() in counted else storage.nbytes()
        counted.add(storage.data_ptr())
    return total


def _seconds(unit: Unit, runnable: _Runnable) -> float:
    """Seconds of the shortest forward and backward pass of one turn."""
    module = unit.module
    clock = undisturbed_clock(_device(module))
    taken: list[float] = []
    with forward_replaced(module, runnable.forward):
        while len(taken) < _MOST_PASSES and sum(taken) < _TURN_S:
            began_s = clock()
            _pass(module, unit)
            taken.append(clock() - began_s)
    return min(taken)


def _pass(module: nn.Module, unit: Unit) -> None:
    output, _ = _forward(module, unit)
    output.backward(torch.ones_like(output))
    if (device := _device(module)).type == "cuda":
        torch.cuda.synchronize(device)


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters(), torch.empty(0)).device


def _give_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def _forget_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None
