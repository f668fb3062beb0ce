"""Finds faults of a task that a user's entrypoint returned, and describes them to the user."""

from __future__ import annotations

import inspect
import itertools
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, IterableDataset

from oakum_worker.chain import Chain
from oakum_worker.data_sets import is_stream, read_samples

if TYPE_CHECKING:
    from oakum_worker.task import Task

_LIBRARIES = (
    *{path for name in ("stdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))},
    str(Path(__file__).parent),
)
"""Folders whose code is not the user's."""
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory")


def first_complaint(task: Task) -> str | None:
    """Text about the first fault of the task that would fail or silently train wrongly later, and what to do; None
    if no fault is found. Reads a sample."""
    return first_complaint_unread(task) or next(iter(_reading_complaints(task)), None)


def first_complaint_unread(task: Task) -> str | None:
    """Text about the first fault of the task that can be found without reading a sample, and what to do; None
    if there is none."""
    checks = (_model_complaints, _chain_complaints, _data_complaints, _evaluation_complaints, _state_complaints)
    return next(itertools.chain.from_iterable(check(task) for check in checks), None)


def describe(error: BaseException) -> str:
    """One line on the exception: its type, its message, and the innermost line of the user's code, or of any code
    where no line is the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = users_frames(frames)
    where = f" ({(own or frames)[-1].filename}:{(own or frames)[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def lacks_memory(error: BaseException | None) -> bool:
    """Whether the error says that the device or the host is out of memory, or an error that it was raised from
    (`__cause__`) does. False for None."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(error, (RuntimeError, OSError)) and any(text in str(error) for text in _OUT_OF_MEMORY):
            return True
        error = error.__cause__
    return False


def users_frames(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames that lie in the user's own code."""
    return [frame for frame in frames if _is_users(frame.filename)]


def _is_users(file: str) -> bool:
    return not file.startswith((*_LIBRARIES, "<")) and "/site-packages/" not in file


def _model_complaints(task: Task) -> list[str]:
    # A user's entrypoint may have given any type, whatever the annotations of `Task` say.
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
    if scheduler is not None and not all(hasattr(scheduler, name) for name in ("step", "state_dict")):
        return [f"the task's scheduler is a {type(scheduler).__name__}: give one of torch.optim.lr_scheduler"]
    if isinstance(scheduler, ReduceLROnPlateau):
        return [
            "the task's scheduler is a ReduceLROnPlateau, which needs a number that is equal on every rank: step "
            "it by the loss in `on_step_end`, with extra_state={'plateau': plateau}, or by a metric in a loop of "
            "your own, in which every rank validates (oakum.session)"
        ]
    if task.scheduler_by_epoch and scheduler is None:
        return ["the task has scheduler_by_epoch and no scheduler: give one, or leave it out"]
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        return ["the scheduler was built with another optimizer: give it the task's"]
    own = {id(parameter) for parameter in model.parameters()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
    if foreign:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in foreign[:3])
        return [
            f"the optimizer has {len(foreign)} parameters that are not the model's (shapes {shapes}): build it "
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
    if several := _number_of_data_sets(dataset):
        return [
            f"the data set is a {type(dataset).__name__} of {several} data sets: give one, such as their "
            "torch.utils.data.ConcatDataset; for several at different rates one whose [i] reads a sample of each"
        ]
    called = f"the data set ({type(dataset).__name__})"
    if lacks := _lacks(dataset):
        return [f"{called} {lacks}"]
    if len(dataset) == 0:
        return [f"{called} is empty: check where it looks for its files"]
    if not callable(loss):
        return [f"the task's loss is a {type(loss).__name__}: give a function of (model, batch)"]
    if further := _third_parameter(loss):
        return [
            f"the task's loss needs {further!r} besides model and batch: what depends on the step's number, as an "
            "attribute of the model, is set in `on_step_start` by progress.step"
        ]
    return []


def _number_of_data_sets(dataset: Any) -> int:
    """Number of data sets in what should be one; 0 where it is one."""
    values = list(dataset.values() if isinstance(dataset, dict) else dataset) if _is_container(dataset) else []
    return len(values) if any(isinstance(value, Dataset | DataLoader) for value in values) else 0


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | dict)


def _third_parameter(loss: Any) -> str | None:
    """The name of a third parameter that has to be given in a call of `loss`, or None."""
    try:
        parameters = list(inspect.signature(loss).parameters.values())
    except (TypeError, ValueError):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for one in parameters[2:]:
        if one.default is one.empty and one.kind in positional:
            return one.name
    return None


def _reading_complaints(task: Task) -> list[str]:
    dataset: Any = task.dataset
    called = f"the data set ({type(dataset).__name__})"
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
    for name in ("on_epoch_start", "on_step_start", "on_step_end"):
        hook: Any = getattr(task, name)
        if hook is not None and not callable(hook):
            return [f"{name} is a {type(hook).__name__}: give a function of (model, progress), or None"]
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
