"""The user's contract: a plain function that returns a `Task`, and how a rank loads it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import default_collate

from oakum_worker.chain import Chain
from oakum_worker.data_sets import SampleStream, SizedDataset, read_samples
from oakum_worker.errors import TaskError
from oakum_worker.randomness import seed_everything
from oakum_worker.spec import TrainerSpec
from oakum_worker.task_checks import describe, first_complaint


class Stateful(Protocol):
    """Keeps something that training changes: a moving average of the weights, a replay buffer, a curriculum."""

    def state_dict(self) -> Mapping[str, Any]:
        """Tensors, numbers, strings, and containers of them. The same on every rank."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Go on from what `state_dict` returned, in another process maybe."""
        ...


@dataclass(kw_only=True)
class Task:
    """Everything Oakum has to know to train a model, in plain PyTorch.

    - Build it on the device it trains on. Do not wrap the model in DistributedDataParallel, and do not shard or
      shuffle the data: Oakum deals every rank its share.
    - A parameter that no sample of a batch touched has a gradient of zeros, not None.
    - When the optimizer steps, `p.grad` holds the gradient of the whole global batch's mean loss on every rank:
      clip it, or look at it, in a hook given to `optimizer.register_step_pre_hook`.
    - Which parameters require gradients is fixed once training has begun.
    - What `loss` draws with torch for the samples of the batch, dropout masks for one, depends on seed, step and
      sample alone, never on the number of nodes (`oakum_worker.sample_randomness` says what is covered).
    - BatchNorm normalises by the samples that one rank computes at once, so its results depend on the number of
      nodes, and rank 0's running statistics are the ones kept. GroupNorm and LayerNorm do not have this problem.
    """

    model: nn.Module
    dataset: SizedDataset | SampleStream
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
    """Makes a batch from a list of samples. Where it draws random numbers, from torch and with the samples along
    the first dimension, each sample has its own, as in the model."""
    chain: Chain | None = None
    """The model's layers in their order, for trainers whose spec has `parallel.pipeline`."""
    extra_state: Mapping[str, Stateful] = field(default_factory=dict)
    """By name, what else belongs to the trainer's state: it moves, shrinks, grows and is saved with it. Its
    `state_dict` is called and copied before each step."""

    def read(self, indices: Sequence[int]) -> Any:
        """The batch of the samples at `indices`, in their order; of a stream, of as many as it begins with."""
        return self.collate(read_samples(self.dataset, indices))


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
    if (complaint := first_complaint(task)) is not None:
        raise TaskError(f"entrypoint {entrypoint}: {complaint}")
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
            f"entrypoint {spec.entrypoint}: importing {name} raised {describe(error)}: correct the module, and "
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
        raise TaskError(f"entrypoint {spec.entrypoint} raised {describe(error)}: correct the function") from error
