"""BatchNorm in a rehearsal: which layers would compute with the samples of one rank, and what to say of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn

from oakum_worker.listing import some_of
from oakum_worker.parallel.normalisation import SynchronisedBatchNorm
from oakum_worker.torch_internals import BatchNorm


@contextlib.contextmanager
def with_running_statistics(model: nn.Module) -> Iterator[dict[str, None]]:
    """Context in which BatchNorm computes with its running statistics, whatever the user's code sets. Yields the
    names of the layers that were called and would have computed with those of their samples."""
    layers = {name: one for name, one in model.named_modules() if isinstance(one, BatchNorm)}
    asked = {name: layer.training for name, layer in layers.items()}
    own = {name: vars(layer)["train"] for name, layer in layers.items() if "train" in vars(layer)}
    normalised: dict[str, None] = {}
    handles = []

    def watch(name: str, layer: BatchNorm) -> Callable[..., None]:
        def called(*_: Any) -> None:
            if (asked[name] and not isinstance(layer, SynchronisedBatchNorm)) or layer.running_mean is None:
                normalised[name] = None

        def train(mode: bool = True) -> nn.Module:
            asked[name] = mode
            return layer

        layer.train = train  # type: ignore[method-assign, assignment]
        layer.training = False
        return called

    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(watch(name, layer)))
    try:
        yield normalised
    finally:
        for handle in handles:
            handle.remove()
        for name, layer in layers.items():
            del layer.train
            vars(layer).update({"train": own[name]} if name in own else {})
            layer.training = asked[name]


def has_statistics(model: nn.Module, name: str) -> bool:
    """Whether the model's BatchNorm layer of this name has a running mean and variance to normalise by."""
    return model.get_submodule(name).running_mean is not None


def describe_batch_norm(names: Collection[str]) -> str:
    """The error text for BatchNorm layers of these names in a trainer that may have several nodes: why they are
    refused, and what to write instead."""
    told = some_of([name or "(the model itself)" for name in names])
    layers = f"layer {told} is" if len(names) == 1 else f"layers {told} are"
    return (
        f"the model's {layers} BatchNorm, which computes with the samples of one node: on several nodes it would "
        "be another training. Write `parallel: {batch_norm: synchronised}` into the trainer's spec, for the "
        "statistics of the whole batch, or `batch_norm: group` for GroupNorm; or use GroupNorm or LayerNorm in "
        "the model"
    )
