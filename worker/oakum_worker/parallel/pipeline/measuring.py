"""Measures the costs of layers on this node, from which a pipeline's layout is chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from oakum_worker.chain import Chain
from oakum_worker.devices import undisturbed_clock
from oakum_worker.errors import TaskError
from oakum_worker.losses import loss_of
from oakum_worker.parallel.offload import Offloaded
from oakum_worker.parallel.pipeline.costs import LayerCost, ModelProfile, Tied
from oakum_worker.parallel.pipeline.split_backward import first_part
from oakum_worker.state.boundary import BoundarySnapshot
from oakum_worker.task import Task
from oakum_worker.task_checks import describe

_BUDGET_S = 1.5
"""Seconds after which no larger micro-batch is measured."""
_LARGEST = 64
_PASSES = 3


def measure_chain(
    task: Task,
    chain: Chain,
    sizes: list[int],
    precision: Callable[[], Any] | None = None,
    *,
    averages: bool = False,
) -> ModelProfile:
    """Time each layer's forward pass and backward pass, whole and split, with micro-batches of `sizes` samples.
    Returns the costs of all layers.

    Takes a second or two; the largest sizes are left out if that is too short. Needs the memory of one layer at
    a time. Sizes that a layer refuses, as BatchNorm refuses a single sample, are left out, too. The task is
    left unchanged. With `averages`, the trainer's weight averages count in the state's bytes. Raises
    `TaskError` if no size is left.
    """
    began_s = time.monotonic()
    measured: dict[int, list[LayerCost]] = {}
    refused: dict[int, Exception] = {}
    input_bytes = 0
    moments = moments_of(task.optimizer) + averages
    noted = BoundarySnapshot(task)
    noted.take()
    try:
        with torch.random.fork_rng(devices=[]):
            for size in sizes:
                if measured and time.monotonic() - began_s > _BUDGET_S:
                    break
                try:
                    batch = task.read([0] * size)
                    measured[size] = list(_layers(chain, batch, size, moments, precision or _as_it_is))
                    input_bytes = _bytes(chain.inputs(batch)) // size
                except Exception as error:
                    refused[size] = error
    finally:
        noted.restore()
        for parameter in task.model.parameters():
            parameter.grad = None
    if not measured:
        size = max(refused)
        raise TaskError(
            f"no micro-batch of {', '.join(map(str, refused))} samples goes through the chain's layers; that of "
            f"{size} raised {describe(refused[size])}: correct the task, or set parallel.pipeline.micro_batch"
        ) from refused[size]
    layers = tuple(map(_merge, zip(*measured.values(), strict=True)))
    smallest = min(measured) if any(size < min(measured) for size in refused) else 1
    return ModelProfile(tuple(measured), layers, input_bytes, smallest, tuple(_find_tied(chain, moments)))


def sizes_up_to(most: int) -> list[int]:
    """The micro-batch sizes to measure: powers of two up to `most`."""
    return [1 << power for power in range(_LARGEST.bit_length()) if 1 << power <= min(most, _LARGEST)]


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


def _layers(
    chain: Chain, batch: Any, size: int, moments: float, precision: Callable[[], Any]
) -> Iterator[LayerCost]:
    values = chain.inputs(batch)
    last = len(chain.layers) - 1
    for number in range(len(chain.layers)):
        # The model's inputs need no gradients.
        inputs = _leaves(values) if number else values

        def compute(given: Any, number: int = number) -> Any:
            with precision():
                outputs = chain.run(range(number, number + 1), given)
                return loss_of(chain.end(outputs, batch)).value if number == last else outputs

        # The quickest of several passes: the first ones warm memory and caches up, and other processes disturb
        # some.
        passes = [_run_layer(compute, inputs, chain.layers[number]) for _ in range(_PASSES)]
        forward_s, backward_s = min(p.forward_s for p in passes), min(p.backward_s for p in passes)
        values = passes[-1].outputs
        parameter_bytes = sum(p.nbytes for p in chain.layers[number].parameters() if p.requires_grad)
        yield LayerCost(
            (forward_s / size,),
            (backward_s / size,),
            parameter_bytes,
            round(parameter_bytes * moments),
            passes[-1].kept_bytes // size,
            _bytes(values) // size,
            _split(passes, backward_s),
        )


def _split(passes: Sequence[_LayerTimes], backward_s: float) -> tuple[float, float] | None:
    parts = [p.parts_s for p in passes if p.parts_s is not None]
    if not parts:
        return None
    inputs_s, weights_s = (min(times) for times in zip(*parts, strict=True))
    return (inputs_s / backward_s, weights_s / backward_s) if backward_s else (1.0, 1.0)


def _find_tied(chain: Chain, moments: float) -> Iterator[Tied]:
    users: dict[nn.Parameter, tuple[int, ...]] = {}
    for number, layer in enumerate(chain.layers):
        for parameter in layer.parameters():
            if parameter.requires_grad:
                users[parameter] = (*users.get(parameter, ()), number)
    for layers in sorted({layers for layers in users.values() if len(layers) > 1}):
        size = sum(parameter.nbytes for parameter, among in users.items() if among == layers)
        yield Tied(layers, size, round(size * moments))


class _LayerTimes(NamedTuple):
    """Times and memory of a forward and a backward pass of one layer."""

    forward_s: float
    backward_s: float
    parts_s: tuple[float, float] | None
    """Seconds of the two parts of a split backward pass; None where it cannot be split."""
    kept_bytes: int
    """Bytes kept between the forward and the backward pass."""
    outputs: Any


def _run_layer(compute: Callable[[Any], Any], inputs: Any, layer: nn.Module) -> _LayerTimes:
    own = {tensor.untyped_storage().data_ptr() for tensor in (*layer.parameters(), *layer.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    copies = tuple(tensor.clone() for tensor in _tensors(inputs))  # for layers that work in place
    given = copies if isinstance(inputs, tuple) else copies[0]
    began_s = _computed_s(inputs)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = compute(given)
    middle_s = _computed_s(inputs)
    roots = [tensor for tensor in _tensors(outputs) if tensor.requires_grad]
    seeds = [torch.ones_like(tensor) for tensor in roots]
    parts_s = _parts_s(roots, seeds, inputs, layer)
    split_s = _computed_s(inputs)
    if roots:
        torch.autograd.backward(roots, seeds)
    return _LayerTimes(middle_s - began_s, _computed_s(inputs) - split_s, parts_s, sum(kept.values()), outputs)


def _parts_s(
    roots: list[torch.Tensor], seeds: list[torch.Tensor], inputs: Any, layer: nn.Module
) -> tuple[float, float] | None:
    """Seconds of the two parts of a split backward pass of a layer: the gradients of its inputs, and of its
    weights. None where the pass cannot be split. Keeps the autograd graph."""
    leaves = [tensor for tensor in _tensors(inputs) if tensor.requires_grad]
    weights = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    began_s = _computed_s(inputs)
    try:
        rest = first_part(roots, seeds, leaves, weights)[1] if roots and leaves else None
        middle_s = _computed_s(inputs)
        if rest is not None:
            rest.run()
        elif roots and weights:
            torch.autograd.backward(roots, seeds, inputs=weights, retain_graph=True)
    except RuntimeError:  # as reentrant checkpoints do
        return None
    return middle_s - began_s, _computed_s(inputs) - middle_s


def _computed_s(values: Any) -> float:
    """Now, for times of computing with the values, by the clock that other work disturbs least."""
    return undisturbed_clock(_tensors(values)[0].device)()


def _leaves(values: Any) -> Any:
    """Copies of the values that begin an autograd graph of their own, as the values do that a stage receives;
    those of floating point require gradients."""
    leaves = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in _tensors(values))
    return leaves if isinstance(values, tuple) else leaves[0]


def _tensors(values: Any) -> tuple[torch.Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)


def _bytes(values: Any) -> int:
    return sum(tensor.nbytes for tensor in _tensors(values))


def moments_of(optimizer: Optimizer) -> float:
    """Number of tensors of a parameter's size that the optimizer keeps on the device: two for Adam.

    An offloaded optimizer keeps its state on the host; each parameter is charged its share of the bucket instead.
    That is less than a stage may need during the optimizer's step, but then its activations are free.
    """
    if isinstance(optimizer, Offloaded):
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        return optimizer.device_bytes() / max(sum(p.nbytes for p in trained), 1)
    if isinstance(optimizer, SGD):
        return int(any(group["momentum"] for group in optimizer.param_groups))
    return 2


def _merge(costs: tuple[LayerCost, ...]) -> LayerCost:
    """One layer's costs measured at several sizes, merged; bytes are those of the largest size."""
    largest = costs[-1]
    return LayerCost(
        tuple(cost.forward_s[0] for cost in costs),
        tuple(cost.backward_s[0] for cost in costs),
        largest.parameter_bytes,
        largest.optimizer_bytes,
        largest.activation_bytes,
        largest.output_bytes,
        largest.split,
    )
