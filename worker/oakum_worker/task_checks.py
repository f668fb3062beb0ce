"""What is wrong with a task that a user's entrypoint returned."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset

from oakum_worker.chain import Chain
from oakum_worker.data_sets import is_stream, read_samples

if TYPE_CHECKING:
    from oakum_worker.task import Task


def first_complaint(task: Task) -> str | None:
    """What would otherwise fail, or silently train something else, minutes later, and what to change."""
    checks = (_model_complaints, _chain_complaints, _data_complaints, _evaluation_complaints, _state_complaints)
    return next(itertools.chain.from_iterable(check(task) for check in checks), None)


def describe(error: BaseException) -> str:
    """The exception, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _model_complaints(task: Task) -> list[str]:
    # What a user returned may be anything, whatever the annotations say.
    model: Any = task.model
    optimizer: Any = task.optimizer
    scheduler: Any = task.scheduler
    if not isinstance(model, nn.Module):
        return [f"the task's model is a {type(model).__name__}, not a torch.nn.Module"]
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return [f"return the bare model: {type(model).__name__} is not needed, Oakum averages the gradients"]
    if not isinstance(optimizer, Optimizer):
        return [f"the task's optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer"]
    if isinstance(optimizer, LBFGS):
        return ["LBFGS evaluates the loss several times in a step: use an optimizer that does so once"]
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return ["no parameter of the model requires gradients: there is nothing to train"]
    if isinstance(scheduler, ReduceLROnPlateau):
        return ["ReduceLROnPlateau needs a metric at each step: use a scheduler that depends on the step alone"]
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        return ["the scheduler was built with another optimizer: give it the task's"]
    own = {id(parameter) for parameter in model.parameters()}
    strangers = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
    if strangers:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in strangers[:3])
        return [
            f"the optimizer has {len(strangers)} parameters that are not the model's (shapes {shapes}): build it "
            "from model.parameters(), after moving, copying or wrapping the model"
        ]
    return []


def _chain_complaints(task: Task) -> list[str]:
    chain: Any = task.chain
    if chain is None:
        return []
    if not isinstance(chain, Chain):
        return [f"the task's chain is a {type(chain).__name__}: give oakum_worker.chain.Chain(layers=...)"]
    layers: list[Any] = list(chain.layers)
    for number, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            name = getattr(layer, "__name__", type(layer).__name__)
            return [f"layer {number} of the task's chain is {name}, not a torch.nn.Module: wrap it in one"]
    return []


def _data_complaints(task: Task) -> list[str]:
    dataset: Any = task.dataset
    loss: Any = task.loss
    if isinstance(dataset, DataLoader):
        return ["the data set is a DataLoader: give the data set in it, Oakum forms the batches"]
    called = f"the data set ({type(dataset).__name__})"
    if lacks := _lacks(dataset):
        return [f"{called} {lacks}"]
    if len(dataset) == 0:
        return [f"{called} is empty: check where it looks for its files"]
    if not callable(loss):
        return [f"the task's loss is a {type(loss).__name__}: give a function of (model, batch)"]
    try:
        samples = read_samples(dataset, [0])
        if is_stream(dataset) and not samples:
            return [f"{called} has {len(dataset)} samples, and its samples(0, 0) gives none: correct one of them"]
        task.collate(samples)
    except Exception as error:
        return [
            f"reading the data set's first sample as a batch raised {describe(error)}: correct dataset or collate"
        ]
    return []


def _lacks(dataset: Any) -> str | None:
    try:
        len(dataset)
        has_length = True
    except TypeError:
        has_length = False
    if is_stream(dataset):
        return None if has_length else "has no length: add __len__, the number of samples of an epoch"
    if isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    ):
        length = "" if has_length else "__len__(), the number of samples of an epoch, and "
        return (
            "can only be iterated, and has no way to begin where a rank's share does: add "
            f"{length}samples(epoch, start), which iterates over the samples of that epoch from number `start` on "
            "(see oakum_worker.data_sets.SampleStream), or use a map-style one"
        )
    return None if has_length else "has no length: use a map-style one, with __len__ and __getitem__"


def _evaluation_complaints(task: Task) -> list[str]:
    evaluate: Any = task.evaluate
    if evaluate is not None and not callable(evaluate):
        return [f"evaluate is a {type(evaluate).__name__}: give a function of the model, or None"]
    if task.evaluate_every_epochs < 1:
        return [f"evaluate_every_epochs is {task.evaluate_every_epochs}: give at least 1"]
    return []


def _state_complaints(task: Task) -> list[str]:
    extra: Any = task.extra_state
    if not isinstance(extra, Mapping):
        return [f"extra_state is a {type(extra).__name__}: give a mapping of names to objects that keep state"]
    for name, keeper in extra.items():
        if not isinstance(name, str):
            return [f"extra_state has the key {name!r}: use names"]
        missing = [
            method for method in ("state_dict", "load_state_dict") if not callable(getattr(keeper, method, None))
        ]
        if missing:
            return [f"extra_state[{name!r}], a {type(keeper).__name__}, has no {' and no '.join(missing)}: add it"]
        if any(keeper is kept for kept in (task.model, task.optimizer, task.scheduler)):
            return [f"extra_state[{name!r}] is the task's own {type(keeper).__name__}: leave it out, it is kept"]
    return []
