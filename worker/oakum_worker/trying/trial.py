"""Runs a trainer's code in one process, in seconds, to find what would otherwise fail on the nodes minutes later.

The beginning and the end of each check are told, so that a check that does not end can be named. Nothing is
written, and the task is of no use afterwards.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.manifest import manifest_path
from oakum_worker.checkpoint.weights import find_checkpoint
from oakum_worker.errors import CheckpointError, TaskError
from oakum_worker.listing import some_of
from oakum_worker.memory_advice import memory_advice
from oakum_worker.parallel.copied_models import with_a_copy
from oakum_worker.parallel.gradient_look import NOTHING_IS_TRAINED, describe_lacking_gradients
from oakum_worker.profiling.sample_errors import collate, read
from oakum_worker.rehearsal import rehearse
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.forward_pass import ForwardPass
from oakum_worker.step.hooks import Hooks
from oakum_worker.step.optimizer_step import OptimizerStep
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.strategy_table import strategy_of
from oakum_worker.task import Task, build_task, import_entrypoint, refuse
from oakum_worker.task_checks import describe, first_complaint_unread, lacks_memory
from oakum_worker.torch_internals import tree_leaves
from oakum_worker.trying.memory_need import MemoryNeed, memory_need
from oakum_worker.trying.sample_sweep import SampleSweep
from oakum_worker.trying.script_trial import ScriptTrial

_PATIENCE_S = 10.0
"""Seconds that an evaluation is waited for; it may take any time, so taking longer is no failure."""
_SLOW_READ_S = 0.01

Report = Callable[[dict[str, Any]], None]
"""Called with each event of a check: a dictionary, ready for JSON."""


@dataclass
class Facts:
    """What a trial found out about a trainer: its sizes, first loss, memory need, and remarks."""

    num_samples: int = 0
    total_samples: int = 0
    """Samples of all epochs together."""
    num_parameters: int = 0
    loss: float | None = None
    memory: MemoryNeed | None = None
    remarks: list[str] = field(default_factory=list)
    """What the user should know but what does not prevent training."""

    def document(self) -> dict[str, Any]:
        """All fields, ready for JSON, and `memory_complaint`: what to do where this machine has too little memory,
        else None."""
        memory = self.memory
        complaint = memory.complaint if memory is not None and not memory.fits_here else None
        return asdict(self) | {"memory_complaint": complaint}


@dataclass(frozen=True)
class Check:
    """One check of a trial. `run` returns a text about the result, and raises where the trainer could not
    train."""

    name: str
    """What the check does, as the beginning of a sentence: "reading the first batch"."""
    run: Callable[[], str]
    patience_s: float | None = None
    """Seconds after which nobody needs to wait for the check any more; None: it has to end."""


def try_out(spec: TrainerSpec, report: Report, state_folder: Path | None = None) -> bool:
    """Run all checks in order up to the first that fails. Returns whether all passed.

    `report` is called when each check begins, when it ends and if it fails; and once with the facts, after the
    checks that have to pass and before those that nobody needs to wait for. With a `state_folder` the newest
    checkpoint in it is loaded, as by a trainer that begins from it. Nothing is compiled, since that takes minutes:
    a spec with `compile` is tried without.
    """
    if spec.script is not None:
        return _try_script(spec, report)
    trial = _Trial(spec.model_copy(update={"compile": False}), state_folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        if not all(_passes(check, report, spec) for check in trial.needed()):
            return False
    trial.facts.remarks += _remarks(caught)
    report({"state": "facts", "facts": trial.facts.document()})
    return all(_passes(check, report, spec) for check in trial.wanted())


def _try_script(spec: TrainerSpec, report: Report) -> bool:
    facts = Facts()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        if not _passes(Check(f"running two steps of {spec.script}", ScriptTrial(spec, facts).run), report, spec):
            return False
    facts.remarks += _remarks(caught)
    facts.remarks.append("a script's memory is not estimated")
    report({"state": "facts", "facts": facts.document()})
    return True


def _passes(check: Check, report: Report, spec: TrainerSpec) -> bool:
    begun = {"check": check.name, "state": "begun", "patience_s": check.patience_s}
    report(begun)
    began_s = time.perf_counter()
    try:
        detail = check.run()
    except (Exception, SystemExit) as error:
        cause = error.__cause__
        text = str(error) if isinstance(error, TaskError) else f"{check.name} raised {describe(error)}"
        if lacks_memory(error):
            text = f"out of memory while {check.name}: {describe(cause or error)}. {memory_advice(spec)}"
        ended = {"check": check.name, "state": "failed", "seconds": time.perf_counter() - began_s}
        report({**ended, "message": text, "lacks": cause.name if isinstance(cause, ModuleNotFoundError) else None})
        return False
    report({"check": check.name, "state": "done", "seconds": time.perf_counter() - began_s, "detail": detail})
    return True


def _remarks(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """The texts of the first five different user and runtime warnings, which come from Oakum and the user's code.
    Warnings of other kinds, by which libraries speak to their developers, are left out."""
    texts = [str(one.message) for one in caught if issubclass(one.category, UserWarning | RuntimeWarning)]
    return list(dict.fromkeys(texts))[:5]


class _Trial:
    """The checks of one spec. Each check uses what the checks before it have made, so they have to be run in
    order."""

    def __init__(self, spec: TrainerSpec, state_folder: Path | None) -> None:
        self._spec = spec
        self._state_folder = state_folder
        self._function: Callable[..., Any]
        self._task: Task
        self._sweep: SampleSweep
        self._loop: TrainingLoop | None = None
        self._read_s = 0.0
        self._computed_s = 0.0
        self.facts = Facts()

    def needed(self) -> Iterator[Check]:
        """The checks that have to pass, in order."""
        torch.set_num_threads(self._spec.threads_per_rank)
        yield Check(f"importing {self._spec.entrypoint.split(':')[0]}", self._import)
        yield Check("building the task", self._build)
        yield Check("reading the first batch", self._read_first)
        if self._spec.workers:
            # As in a rank: after a sample was read there, and before it computes.
            yield Check("starting reader processes", self._start_readers)
        yield Check("computing loss and gradients of two samples", self._compute)
        yield Check("rehearsing", self._rehearse)
        yield Check("estimating memory", self._estimate)
        yield Check(f"reading more samples{' in reader processes' if self._spec.workers else ''}", self._read_more)
        yield Check("setting up the trainer", self._set_up)
        if self._state_folder is not None:
            folder = self._state_folder
            yield Check("taking up the state to begin from", lambda: self._adopt(folder))
        if self._task.on_step_end is not None:
            yield Check("calling on_step_end", self._end_step)

    def wanted(self) -> Iterator[Check]:
        """The checks that may take too long to wait for: the task's evaluation, if it has one that one process can
        make."""
        if self._task.evaluate is not None and strategy_of(self._spec).evaluates_alone:
            yield Check("evaluating", self._evaluate, patience_s=_PATIENCE_S)

    def _import(self) -> str:
        self._function = import_entrypoint(self._spec)
        return ""

    def _build(self) -> str:
        self._task = task = build_task(self._function, self._spec)
        refuse(first_complaint_unread(task), self._spec)
        self._sweep = SampleSweep(task, self._spec)
        self.facts.num_parameters = sum(parameter.numel() for parameter in task.model.parameters())
        self.facts.num_samples = len(task.dataset)
        self.facts.total_samples = len(task.dataset) * self._spec.epochs
        return f"{self.facts.num_parameters:,} parameters, {self.facts.num_samples:,} samples"

    def _read_first(self) -> str:
        began_s = time.perf_counter()
        samples = read(self._task, range(self._num_tried))
        self._read_s = (time.perf_counter() - began_s) / self._num_tried
        batch = collate(self._task, samples, "the first samples")
        shapes = [tuple(leaf.shape) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        return f"tensors of {', '.join(map(str, shapes[:3]))}" if shapes else ""

    @property
    def _num_tried(self) -> int:
        return min(2, len(self._task.dataset))

    def _compute(self) -> str:
        task, numbers = self._task, range(self._num_tried)
        updater = OptimizerStep(task, self._spec)
        began_s = time.perf_counter()
        self._call_hooks("on_epoch_start", "on_step_start", call=lambda hooks: hooks.start_step(Cursor(), rank=0))
        try:
            with self._trained() as trained:
                forward = ForwardPass(trained, self._spec, updater.forward)
                self._pass(forward, list(numbers))
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(
                f"loss and gradients of the first {len(numbers)} samples raised {describe(error)}: correct the "
                "model, the loss or what the data set gives"
            ) from error
        self._computed_s = (time.perf_counter() - began_s) / len(numbers) - self._read_s
        self._look_at_gradients(trained.model)
        return f"loss {self.facts.loss:.4g}"

    def _trained(self) -> AbstractContextManager[Task]:
        """Context that yields the task with the model that would be trained: another object where the strategy
        trains a copy, which is where a loss that refers to the entrypoint's own model goes wrong."""
        return with_a_copy(self._task) if strategy_of(self._spec).copies_model else nullcontext(self._task)

    def _pass(self, forward: ForwardPass, numbers: list[int]) -> None:
        with forward.loss(Cursor(), range(len(numbers)), numbers) as loss:
            self.facts.loss = value = loss.mean
            if not math.isfinite(value):
                raise TaskError(self._not_finite(value))
            loss.value.backward()

    def _call_hooks(self, *names: str, call: Callable[[Hooks], None]) -> None:
        try:
            call(Hooks(self._task))
        except (Exception, SystemExit) as error:
            which = " or ".join(name for name in names if getattr(self._task, name) is not None)
            raise TaskError(f"{which} raised {describe(error)}: correct it") from error

    def _not_finite(self, value: float) -> str:
        batch = self._task.collate(read(self._task, range(self._num_tried)))
        leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        where = "look for the log or root of 0, a division by 0, or a mask that leaves nothing"
        if any(leaf.is_floating_point() and not leaf.isfinite().all() for leaf in leaves):
            where = "these samples themselves hold values that are not finite: correct the data set"
        weights = self._task.model.named_parameters()
        if bad := [name for name, weight in weights if not weight.detach().isfinite().all()]:
            where = f"{some_of(bad)} is not finite as it was built: correct its initial values"
        return f"the loss of the first {self._num_tried} samples is {value}, before any step: {where}"

    def _look_at_gradients(self, model: nn.Module) -> None:
        """Raise `TaskError` where a gradient is not finite (except with float16, whose loss scale adapts), or no
        parameter of the model has any. Add remarks on weights that will not be trained: without a gradient, or not
        given to the optimizer."""
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        bad = [name for name, p in trained.items() if p.grad is not None and not p.grad.isfinite().all()]
        if bad and self._spec.precision != "float16":
            raise TaskError(
                f"the loss is finite and the gradient of {some_of(bad)} is not, before any step: look for a root "
                "or norm of 0, whose slope is infinite"
            )
        if strategy_of(self._spec).takes_gradients:
            lacking = [name for name, p in trained.items() if p.grad is None]
            if len(lacking) == len(trained):
                raise TaskError(NOTHING_IS_TRAINED)
            if lacking:
                self.facts.remarks.append(describe_lacking_gradients(lacking))
        held = {id(p) for group in self._task.optimizer.param_groups for p in group["params"]}
        own = {name: p for name, p in self._task.model.named_parameters() if p.requires_grad}
        if left_out := [name for name, p in own.items() if id(p) not in held]:
            self.facts.remarks.append(
                f"{some_of(left_out)}: not given to the optimizer, so it will not be trained"
            )

    def _rehearse(self) -> str:
        """Add remarks on whatever would silently train differently on another number of nodes. Returns the detail
        to print: "left out" where the rehearsal raised an error other than `TaskError`, which a later check will
        show."""
        self._task.optimizer.zero_grad()
        try:
            self.facts.remarks += rehearse(self._task, self._spec)
        except TaskError:
            raise
        except Exception:
            return "left out"  # a later check says what is wrong with it
        return ""

    def _estimate(self) -> str:
        if not strategy_of(self._spec).takes_gradients:
            return "left out: it is measured in backward passes, and this task has none"
        self.facts.memory = need = memory_need(self._task, self._spec)
        return need.summary

    def _start_readers(self) -> str:
        self._sweep.start_readers()
        return f"{self._spec.workers}"

    def _read_more(self) -> str:
        """Read and collate samples for a few seconds, to find samples that cannot be read. Adds a remark if
        reading takes more of a step than computing does. Returns a text that says how many samples were read."""
        with self._sweep as sweep:
            swept = sweep.run()
        self._read_s = swept.read_s
        if self._read_s > _SLOW_READ_S and self._read_s > self._computed_s:
            self.facts.remarks.append(self._slow_reading())
        return f"{swept.samples:,} of {len(self._task.dataset):,} read"

    def _slow_reading(self) -> str:
        cure = "prepare the data set beforehand, or have it keep what it has read"
        if self._sweep.readers:
            return (
                f"{self._sweep.readers} read a sample in {self._read_s:.2g} s here, and computing with it takes "
                f"{max(self._computed_s, 0.0):.2g} s: {cure}, or raise workers"
            )
        share = self._read_s / max(self._read_s + self._computed_s, 1e-9)
        return f"reading a sample takes {self._read_s:.2g} s here, {share:.0%} of a step: {cure}"

    def _set_up(self) -> str:
        self._task.optimizer.zero_grad()
        self._loop = TrainingLoop(self._task, self._spec)
        return f"{self._loop.progress.total_steps:,} steps"

    def _adopt(self, folder: Path) -> str:
        assert self._loop is not None
        checkpoints = DurableCheckpoints(folder, keep=1)
        try:
            newest = find_checkpoint(folder) if manifest_path(folder).is_file() else checkpoints.newest()
            if newest is None:
                raise TaskError(f"there is no whole checkpoint in {folder}: submit the trainer without --from")
            loaded = self._loop.state.state_dict()
            with warnings.catch_warnings():  # torch's, that there is no process group.
                warnings.simplefilter("ignore")
                checkpoints.load(newest, loaded)
            self._loop.state.adopt(loaded)
        except CheckpointError as error:
            raise TaskError(str(error)) from error
        return f"step {newest.step:,}"

    def _end_step(self) -> str:
        loss = self.facts.loss
        assert loss is not None
        self._call_hooks("on_step_end", call=lambda hooks: hooks.end_step(Cursor(), loss, rank=0))
        return ""

    def _evaluate(self) -> str:
        assert self._loop is not None
        try:
            metrics = self._loop.evaluations.run()
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(f"evaluate raised {describe(error)}: correct it") from error
        return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
