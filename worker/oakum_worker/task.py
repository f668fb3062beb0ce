"""The user's contract: a plain function that returns a `Task`, and how a rank loads it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import default_collate

from oakum_worker.errors import TaskError
from oakum_worker.randomness import seed_everything
from oakum_worker.spec import TrainerSpec


class SizedDataset(Protocol):
    """A map-style data set. With a `__getitems__(indices)` of its own, that one reads whole chunks."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(kw_only=True)
class Task:
    """Everything Oakum has to know to train a model, in plain PyTorch.

    - Build it on the device it trains on. Do not wrap the model in DistributedDataParallel, and do not shard or
      shuffle the data: Oakum deals every rank its share.
    - A parameter that no sample of a batch touched has a gradient of zeros, not None.
    - When the optimizer steps, `p.grad` holds the gradient of the whole global batch's mean loss on every rank:
      clip it, or look at it, in a hook given to `optimizer.register_step_pre_hook`.
    - Which parameters require gradients is fixed once training has begun.
    - BatchNorm normalises by the samples that one rank computes at once, so its results depend on the number of
      nodes, and rank 0's running statistics are the ones kept. GroupNorm and LayerNorm do not have this problem.
    """

    model: nn.Module
    dataset: SizedDataset
    loss: Callable[[nn.Module, Any], torch.Tensor]
    """`loss(model, batch)`: the mean loss over the batch's samples, a scalar."""
    optimizer: Optimizer
    """Holds parameters of `model` and of nothing else."""
    scheduler: LRScheduler | None = None
    """Stepped after each optimizer step, not after each epoch."""
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    """Called on rank 0 alone, with the model in eval mode and without gradients."""
    evaluate_every_epochs: int = 1
    """Epochs between two evaluations. The last epoch is always followed by one."""
    collate: Callable[[list[Any]], Any] = default_collate
    """Makes a batch from a list of samples."""

    def read(self, indices: Sequence[int]) -> Any:
        """The batch made of the data set's samples at `indices`, in their order."""
        if (read_many := getattr(self.dataset, "__getitems__", None)) is not None:
            return self.collate(read_many(indices))
        return self.collate([self.dataset[index] for index in indices])


def load_task(spec: TrainerSpec) -> Task:
    """Import the spec's entrypoint and call it with the spec's arguments.

    The random generators are seeded from the spec first, so that every process builds the same initial weights. An
    entrypoint with a parameter named `spec` is given the trainer spec itself there.
    Raises `TaskError` that says what failed and what to change.
    """
    entrypoint = spec.entrypoint
    module_name, function_name = entrypoint.split(":")
    if spec.workdir is not None:
        _put_first_on_path(spec.workdir)
    seed_everything(spec.seed)
    torch.manual_seed(spec.seed)  # Devices that the entrypoint is the first to use, too.
    module = _import(module_name, spec)
    function = _find(module, function_name, entrypoint)
    task = _call(function, spec)
    if not isinstance(task, Task):
        given = "None (is a `return` missing?)" if task is None else f"{type(task).__name__} object"
        raise TaskError(f"entrypoint {entrypoint} returned {given}: return an oakum_worker.task.Task")
    _check(task, entrypoint)
    return task


def _put_first_on_path(workdir: str) -> None:
    folder = str(Path(workdir).resolve())
    if not Path(folder).is_dir():
        raise TaskError(f"workdir {folder} is not a folder on this node: correct the spec's workdir")
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _import(name: str, spec: TrainerSpec) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            looked = f"workdir {spec.workdir}" if spec.workdir else "no workdir is set"
            raise TaskError(
                f"entrypoint {spec.entrypoint}: there is no module {missing!r} on the import path ({looked}); "
                "set the spec's workdir to the folder that contains it, or add that folder to PYTHONPATH"
            ) from error
        raise TaskError(
            f"entrypoint {spec.entrypoint}: module {name} imports {missing!r}, which is not there: install it in "
            f"the environment of {sys.executable}, or add its folder to PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"entrypoint {spec.entrypoint}: importing {name} raised {_describe(error)}: correct the module, and "
            "keep what a script does when run under `if __name__ == '__main__':`"
        ) from error


def _find(module: ModuleType, name: str, entrypoint: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if callable(function):
        return function
    if function is not None:
        raise TaskError(f"entrypoint {entrypoint} is a {type(function).__name__}: name a function")
    public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
    similar = difflib.get_close_matches(name, public) or sorted(public)[:10]
    there = ", ".join(similar) if similar else "nothing public"
    raise TaskError(f"entrypoint {entrypoint}: {module.__file__} has no {name!r}; it has: {there}")


def _call(function: Callable[..., Any], spec: TrainerSpec) -> Any:
    signature = inspect.signature(function)
    arguments = dict(spec.arguments)
    if "spec" in signature.parameters:
        arguments.setdefault("spec", spec)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise TaskError(
            f"entrypoint {spec.entrypoint} cannot be called with the spec's arguments ({error}): "
            f"it takes {signature}, and the spec gives: {', '.join(spec.arguments) or 'none'}"
        ) from error
    try:
        return function(**arguments)
    except (Exception, SystemExit) as error:
        raise TaskError(f"entrypoint {spec.entrypoint} raised {_describe(error)}: correct the function") from error


def _describe(error: BaseException) -> str:
    """The exception, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _check(task: Task, entrypoint: str) -> None:
    """Raise `TaskError` for what would otherwise fail, or silently train something else, minutes later."""
    for complaint in (*_model_complaints(task), *_data_complaints(task), *_evaluation_complaints(task)):
        raise TaskError(f"entrypoint {entrypoint}: {complaint}")


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


def _data_complaints(task: Task) -> list[str]:
    kind = type(task.dataset).__name__
    loss: Any = task.loss
    try:
        size = len(task.dataset)
    except TypeError:
        return [f"the data set ({kind}) has no length: use a map-style one, with __len__ and __getitem__"]
    if size == 0:
        return [f"the data set ({kind}) is empty: check where it looks for its files"]
    if not callable(loss):
        return [f"the task's loss is a {type(loss).__name__}: give a function of (model, batch)"]
    try:
        task.read([0])
    except Exception as error:
        return [
            f"reading the data set's first sample as a batch raised {_describe(error)}: correct dataset or collate"
        ]
    return []


def _evaluation_complaints(task: Task) -> list[str]:
    evaluate: Any = task.evaluate
    if evaluate is not None and not callable(evaluate):
        return [f"evaluate is a {type(evaluate).__name__}: give a function of the model, or None"]
    if task.evaluate_every_epochs < 1:
        return [f"evaluate_every_epochs is {task.evaluate_every_epochs}: give at least 1"]
    return []
