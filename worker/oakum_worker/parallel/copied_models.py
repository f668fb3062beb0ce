"""Training a copy of the model that the user's entrypoint has built, and what refers to that model's modules.

A sharded trainer trains another object in each generation. A chain is led from one to the next, since its layers
are known. A function of the user that refers to the model by itself cannot be led, and would see weights that
nobody trains.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from oakum_worker.chain import Chain
from oakum_worker.errors import TaskError
from oakum_worker.listing import some_of
from oakum_worker.parallel.meta_models import deep_copy
from oakum_worker.task import Task


class UsersParameters:
    """The parameters of the model that the entrypoint has built, while another object is trained. Keeps none of
    them alive."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [(name, weakref.ref(parameter)) for name, parameter in model.named_parameters()]
        for parameter in model.parameters():
            parameter.grad = None

    def refuse_gradients(self) -> None:
        """Raise `TaskError` where a backward pass has given one of the parameters a gradient."""
        alive = ((name, reference()) for name, reference in self._parameters)
        if names := [name for name, parameter in alive if parameter is not None and parameter.grad is not None]:
            raise TaskError(
                f"the loss was computed with {some_of(names)} of the model that the entrypoint has built, and a "
                "sharded trainer trains another object: compute all of it with the model that `loss(model, "
                "batch)` is given, or with a Chain, and keep no other reference to the model"
            )


def lead_chains(task: Task, old: nn.Module, new: nn.Module) -> None:
    """Have the task's chains compute with the modules of `new` in place of those of `old`, which has the same
    structure. A layer that is no module of `old` itself and contains some is copied with those of `new`.

    Raises `TaskError` where such a layer cannot be copied.
    """
    parts = dict(_parts_of(new))
    counterparts = {id(part): parts[name] for name, part in _parts_of(old) if name in parts}  # hooks may add some
    for chain in _chains_of(task):
        chain.layers = [deep_copy(layer, dict(counterparts)) for layer in chain.layers]


@contextmanager
def with_a_copy(task: Task) -> Iterator[Task]:
    """Context that yields the task as a trainer has it that trains a copy of its model. The copy's parameters
    share the memory of the model's own and are other objects. Raises `TaskError` where the model cannot be copied,
    and at the end where the loss has given the model's own parameters gradients."""
    memo: dict[int, object] = {
        id(parameter): nn.Parameter(parameter.detach(), parameter.requires_grad)
        for parameter in task.model.parameters()
    }
    layers = [(chain, chain.layers) for chain in _chains_of(task)]
    users = UsersParameters(task.model)
    copied = replace(task, model=deep_copy(task.model, memo))
    lead_chains(copied, task.model, copied.model)
    try:
        yield copied
        users.refuse_gradients()
    finally:
        for chain, own in layers:
            chain.layers = own


def _chains_of(task: Task) -> Sequence[Chain]:
    chains = {id(one): one for one in (task.loss, task.chain) if isinstance(one, Chain)}
    return list(chains.values())


def _parts_of(model: nn.Module) -> Iterator[tuple[tuple[str, str], object]]:
    """((kind, name), object) of each module, parameter and buffer of the model, under all of its names."""
    for name, module in model.named_modules(remove_duplicate=False):
        yield ("module", name), module
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield ("parameter", name), parameter
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield ("buffer", name), buffer
