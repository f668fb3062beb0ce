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
from oakum_worker.losses import LossValue
from oakum_worker.randomness.counters import seed_everything
from oakum_worker.spec import TrainerSpec
from oakum_worker.task_checks import describe, first_complaint
from oakum_worker.weight_files import begin_from_file


class Stateful(Protocol):
    """An object whose state training changes: a moving average of the weights, a replay buffer, a curriculum."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state: tensors, numbers, strings, and containers of them. It has to be equal on every rank."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Replace the state by what `state_dict` returned, perhaps in another process."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands when a hook of the task is called. All fields but `rank` are equal on every rank."""

    step: int
    """Finished optimizer steps."""
    epoch: int
    """The epoch of the step that begins or has ended, from 0."""
    loss: float | None
    """Mean loss over the global batch of the step that has ended, before its update.

    None before a step or epoch.
    """
    rank: int
    """This rank's number, for work of a single rank such as logging. Nothing that affects training may depend on
    the number."""


Hook = Callable[[nn.Module, Progress], None]
"""`hook(model, progress)`, with the model as this rank has it: sharded in a sharded trainer, and without other
ranks' layers in a pipeline."""


@dataclass(kw_only=True)
class Task:
    """Everything Oakum has to know to train a model, in plain PyTorch.

    - Build it on the device it trains on. Do not wrap the model in DistributedDataParallel, and do not shard or
      shuffle the data: Oakum deals every rank its share.
    - A parameter that no sample of a batch touched has a gradient of zeros, not None.
    - When the optimizer steps, `p.grad` holds the gradient of the whole global batch's loss on every rank:
      clip it, or look at it, in a hook given to `optimizer.register_step_pre_hook`.
    - Which parameters require gradients is fixed once training has begun; a change ends the trainer.
    - Random numbers that `loss` draws with torch for the samples of the batch, such as dropout masks, depend on
      seed, step and sample alone, never on the number of nodes; `oakum_worker.randomness.sample_randomness` says
      which draws are covered.
    - BatchNorm normalises by the samples that one rank computes at once, so its results depend on the number of
      nodes, and rank 0's running statistics are the ones kept. GroupNorm and LayerNorm do not have this problem.
    """

    model: nn.Module
    dataset: SizedDataset | SampleStream
    loss: Callable[[nn.Module, Any], LossValue]
    """`loss(model, batch)`: the mean loss over the batch's samples, a scalar.

    A loss that is a mean over other items, such as the tokens that are no padding, returns `(total, weight)`: the
    sum of the items' losses, and the divisor of this sum. The global batch's loss is then the sum of all totals
    over the sum of all weights, at any number of nodes. Where all weights are 0, the loss and its gradient are 0.
    """
    gathers: bool = False
    """Whether `loss` calls `oakum_worker.gathering.gather_batch`, as a contrastive loss does."""
    optimizer: Optimizer
    """Holds parameters of `model` and of nothing else."""
    scheduler: LRScheduler | None = None
    """Stepped after each optimizer step, or after each epoch's last one: see `scheduler_by_epoch`."""
    scheduler_by_epoch: bool = False
    """Whether `scheduler` counts epochs: it is stepped once after the last step of each epoch, before
    `on_step_end`."""
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    """Called on rank 0 alone, with the model in eval mode and without gradients."""
    evaluate_every_epochs: int = 1
    """Epochs between two evaluations, unless the spec's `evaluate` says otherwise. The last epoch is always
    followed by one."""
    evaluates_together: bool = False
    """Whether `evaluate` calls `oakum_worker.evaluation.sum_over`: it is then called on every rank, and the ranks
    divide the data set among them."""
    collate: Callable[[list[Any]], Any] = default_collate
    """Makes a batch from a list of samples; called once for each micro-batch. Random numbers that it draws with
    torch, with the samples along the first dimension, such as a mask of shape (samples, length), follow from
    (seed, step, sample). They are equal at any number of nodes, and on a pipeline's first and last stages."""
    on_epoch_start: Hook | None = None
    """Called on every rank before the rank's first step of an epoch, also where the rank has just joined or was
    restarted. A hook may therefore be called several times for one epoch, and has to set only what follows from
    `Progress`: attributes of the model, the data set or the loss, such as the samples' difficulty."""
    on_step_start: Hook | None = None
    """Called on every rank before each step, and again before a step that is repeated because a rank was lost."""
    on_step_end: Hook | None = None
    """Called on every rank once for each finished step, before the step counts as finished: the state that other
    ranks take up, or that is saved, is the state after the hook. The hook may change what is part of the state:
    `extra_state`, buffers, parameters, `optimizer.param_groups`. Keep it short: ranks that leave wait for it."""
    chain: Chain | None = None
    """The model's layers in their order, for trainers whose spec has `parallel.pipeline`."""
    extra_state: Mapping[str, Stateful] = field(default_factory=dict)
    """Name -> further object whose state belongs to the trainer's state, is sent to joining ranks and is saved.
    The object's `state_dict` is called and copied before each step."""

    def read(self, indices: Sequence[int]) -> Any:
        """The collated batch of the samples at `indices`, in order; of a stream, of its first `len(indices)`
        samples, whatever `indices` are."""
        return self.collate(read_samples(self.dataset, indices))


def load_task(spec: TrainerSpec) -> Task:
    """Import the spec's entrypoint and call it with the spec's arguments.

    Seeds the random generators from the spec first, so that every process builds the same initial weights. An
    entrypoint with a parameter named `spec` is given the trainer spec there, unless the arguments name another.
    Raises `TaskError` that says what failed and what to change.
    """
    task = build_task(import_entrypoint(spec), spec)
    refuse(first_complaint(task), spec)
    return task


def import_entrypoint(spec: TrainerSpec) -> Callable[..., Any]:
    """The first part of `load_task`: import the spec's function and seed the generators.

    Raises `TaskError` where the function cannot be imported.
    """
    if spec.script is not None:
        raise TaskError(
            f"the spec names the script {spec.script}, which has no Task: run it with python, or submit it"
        )
    module_name, function_name = spec.entrypoint.split(":")
    if spec.workdir is not None:
        _put_first_on_path(spec.workdir)
    seed_everything(spec.seed)
    torch.manual_seed(spec.seed)  # This also seeds devices that the entrypoint is the first to use.
    return _find(_import(module_name, spec), function_name, spec.entrypoint)


def build_task(function: Callable[..., Any], spec: TrainerSpec) -> Task:
    """The second part of `load_task`: call the function, begin its model from the file that the spec names as
    `initial`, and return the task, not checked yet.

    Raises `TaskError` where the function fails or returns no `Task`, and where the file does not fit the model.
    """
    task = _call(function, spec)
    if not isinstance(task, Task):
        returned = "None (is a `return` missing?)" if task is None else f"{type(task).__name__} object"
        raise TaskError(f"entrypoint {spec.entrypoint} returned {returned}: return an oakum_worker.task.Task")
    if spec.initial is not None and isinstance(task.model, nn.Module):
        begin_from_file(task.model, Path(spec.workdir or ".", spec.initial))
    return task


def refuse(complaint: str | None, spec: TrainerSpec) -> None:
    """Raise `TaskError` with the complaint and the entrypoint's name; do nothing for None."""
    if complaint is not None:
        raise TaskError(f"entrypoint {spec.entrypoint}: {complaint}")


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
    if similar := difflib.get_close_matches(name, public):
        advice = f"did you mean {' or '.join(repr(other) for other in similar)}?"
    else:
        advice = f"it has: {', '.join(sorted(public)[:10]) or 'nothing public'}"
    raise TaskError(f"entrypoint {entrypoint}: {module.__file__} has no {name!r}; {advice}")


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
