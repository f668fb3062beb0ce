"""Tries a task on a few samples and says what would make its training depend on the number of nodes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from oakum_worker.data_sets import is_stream
from oakum_worker.errors import TaskError, TrainingWarning
from oakum_worker.listing import some_of
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.rehearsal.batch_norm import describe_batch_norm, with_running_statistics
from oakum_worker.rehearsal.comparison import Comparison, describe_raising_part, differ
from oakum_worker.rehearsal.hidden_state import Change, HiddenState, changes
from oakum_worker.rehearsal.no_trace import Watch, attributes_kept, generators_kept, hidden_state
from oakum_worker.rehearsal.passes import LossComputation, Passes, SteppedError
from oakum_worker.rehearsal.samples import Drawn, draw, read_again
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.hooks import Hooks
from oakum_worker.step.requirements import describe_changed_requirements
from oakum_worker.strategy_table import strategy_of
from oakum_worker.task import Task
from oakum_worker.task_checks import describe
from oakum_worker.torch_internals import NormBase

_SAMPLES, _DRAWS = 8, 3
_LARGEST_MODEL_BYTES = 1 << 30
"""Largest size of the parameters of a model on the CPU for which forward passes are tried."""
_WAY_OUT = "If it is meant so, `exact: false` in the spec trains all the same."

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_EVALUATES = (
    "the model is in evaluation mode, as the entrypoint returns it, so its dropout does nothing: call "
    "`model.train()` in the entrypoint, or leave the mode if that is meant"
)


@dataclass(frozen=True)
class Finding:
    """A property of the task with which training would differ from what the user may expect."""

    text: str
    refuses: bool
    """Whether the finding refuses the task if the spec may split batches and asks for exactness; otherwise it is a
    warning."""
    is_always_refused: bool = False
    """Whether training itself refuses the property, whatever the spec, also without a rehearsal."""


def rehearse(
    task: Task, spec: TrainerSpec, *, budget_s: float = 1.0, batch_dims: BatchDims | None = None
) -> tuple[str, ...]:
    """Try the task and return warnings. Its model must be whole and in no process group. `batch_dims` learns where
    the samples lie in what the task draws.

    Takes about `budget_s` seconds, at least the time to read samples and compute a forward pass; checks that do
    not fit are left out. The task and its data set are restored afterwards. A task whose code raises here passes:
    training will report the error.
    Raises `TaskError` if training would depend on the number of nodes. If the spec only allows one rank that
    computes each batch whole, or says that training need not be exact, such a finding is a warning.
    """
    if not spec.rehearsal:
        return ()
    try:
        findings = _find(task, spec, time.monotonic() + budget_s, batch_dims or BatchDims())
    except TaskError:
        raise
    except Exception as error:  # an object of an unforeseen kind is no reason not to train
        return (f"the rehearsal broke off, and nothing more was looked at ({describe(error)})",)
    for finding in findings:
        if finding.is_always_refused or (finding.refuses and spec.exact and splits_batches(spec)):
            way_out = "" if finding.is_always_refused else f". {_WAY_OUT}"
            raise TaskError(f"entrypoint {spec.entrypoint}: {finding.text}{way_out}")
    return tuple(finding.text for finding in findings)


def _find(task: Task, spec: TrainerSpec, until_s: float, dims: BatchDims) -> list[Finding]:
    findings: list[Finding] = []
    with generators_kept(), attributes_kept(task):
        try:
            Hooks(task).start_step(Cursor(), rank=0)
        except Exception:
            return []  # training calls the same hooks and reports the error
        for finding in _Rehearsal(task, spec, until_s, dims).findings():
            findings.append(finding)
            if finding.refuses:
                break
    return findings


def rehearse_and_warn(
    task: Task, spec: TrainerSpec, *, budget_s: float = 1.0, batch_dims: BatchDims | None = None
) -> None:
    """Rehearse the task and issue each text that `rehearse` returns as a `TrainingWarning`. Raises `TaskError`."""
    for text in rehearse(task, spec, budget_s=budget_s, batch_dims=batch_dims):
        warnings.warn(text, TrainingWarning, stacklevel=2)


def splits_batches(spec: TrainerSpec) -> bool:
    """Whether the spec allows that a batch is ever computed in several parts: on several ranks, in micro-batches,
    with an adaptive batch or in a pipeline."""
    largest = max([spec.global_batch, *(samples for _, samples in spec.batch_schedule)])
    in_parts = spec.micro_batch is not None and spec.micro_batch < largest
    return (
        _may_have_several_ranks(spec)
        or in_parts
        or spec.adaptive_batch is not None
        or strategy_of(spec).splits_batches
    )


def _may_have_several_ranks(spec: TrainerSpec) -> bool:
    return spec.max_nodes * spec.ranks_per_node > 1


class _Rehearsal:
    def __init__(self, task: Task, spec: TrainerSpec, until_s: float, dims: BatchDims) -> None:
        self._task, self._spec, self._until_s, self._dims = task, spec, until_s, dims
        self._most = min(_SAMPLES, spec.micro_batch or spec.global_batch)

    def findings(self) -> Iterator[Finding]:
        """Findings about the data set, then about forward passes; ends early if the task's code raises."""
        began_s = time.monotonic()
        reading_until_s = began_s + (self._until_s - began_s) / 3
        try:
            drawn = draw(self._task, self._spec.seed, 0, self._most, reading_until_s)
            what = read_again(self._task, self._spec.seed, drawn, reading_until_s)
        except Exception:
            return  # training reads the same data set and reports the error
        if what is not None:
            yield Finding(what, refuses=True)
        if _does_without_training_mode(self._task.model):
            yield Finding(_EVALUATES, refuses=False)
        if not _is_too_dear(self._task, self._spec):
            with with_running_statistics(self._task.model) as normalised:
                yield from self._of_passes(drawn, normalised)

    def _of_passes(self, drawn: Drawn, normalised: Collection[str]) -> Iterator[Finding]:
        """What forward passes of some samples show to be wrong with the task. The caller puts the names of
        BatchNorm layers that a pass has used in training mode into `normalised` meanwhile."""
        task = self._task
        hidden = hidden_state(task)
        watch, passes = Watch(task, hidden), Passes(task, self._spec)
        if not watch.copies_weights and not splits_batches(self._spec):
            return
        try:
            yield from self._of_repetition(watch, hidden, passes, drawn)
            if normalised and self._spec.parallel.batch_norm == "keep" and _may_have_several_ranks(self._spec):
                yield Finding(describe_batch_norm(normalised), refuses=True)
            # A task whose loss gathers the whole batch computes no part alone, so its parts are not compared.
            if not task.gathers and time.monotonic() < self._until_s:
                yield from self._of_parts(watch, passes, drawn)
            self._learn_dims(watch, passes, drawn)
        except SteppedError as error:
            yield Finding(_describe_step(error, task), refuses=True)
        except Exception:
            return  # what raises here raises in training
        finally:
            watch.restore()

    def _learn_dims(self, watch: Watch, passes: Passes, drawn: Drawn) -> None:
        """Learn from two sizes where the samples lie in what a pass draws."""
        samples = drawn.samples
        if len(samples) > 1:
            calls = []
            for part in (samples, samples[:-1]):
                calls.append(passes.draws(part))
                watch.restore_state()
            self._dims.learn(calls)

    def _of_repetition(self, watch: Watch, hidden: HiddenState, passes: Passes, drawn: Drawn) -> Iterator[Finding]:
        """Findings from computing one loss twice: about changes of hidden state, weights and `requires_grad` in
        between, and about a loss that differs the second time."""
        samples = drawn.samples[:2]
        try:
            first = passes.compute(samples)
        except Exception as error:
            passes.compute(drawn.samples)  # if the whole batch raises, too, training will report the error
            yield Finding(describe_raising_part(len(drawn.samples), len(samples), error), refuses=True)
            return
        if names := watch.changed_weights():
            yield Finding(_describe_weights(names), refuses=True)
        if names := watch.changed_requirements():
            yield Finding(describe_changed_requirements(names, "`loss`"), refuses=True, is_always_refused=True)
        watch.restore_state()
        once = hidden.take()
        second = passes.compute(samples)
        watch.restore_state()
        differs = differ(first, second, self._task)
        for change in changes(once, hidden.take()):
            yield _of_change(change, differs=differs)
        if differs:
            yield Finding(_describe_repetition(first, second), refuses=True)

    def _of_parts(self, watch: Watch, passes: Passes, drawn: Drawn) -> Iterator[Finding]:
        for number in range(_DRAWS):
            if number and time.monotonic() < self._until_s and not is_stream(self._task.dataset):
                drawn = draw(self._task, self._spec.seed, number, self._most, self._until_s)
            elif number:
                return
            if len(drawn.samples) < 2:  # the time was over after the first one
                return
            comparison = Comparison(self._task, passes, watch, drawn.samples)
            if (what := comparison.complaint()) is not None:
                yield Finding(what, refuses=True)
            if not number:
                yield from self._of_buffers(comparison)

    def _of_buffers(self, comparison: Comparison) -> Iterator[Finding]:
        own = {
            f"{prefix}.{name}" if prefix else name
            for prefix, module in self._task.model.named_modules()
            for name, _ in module.named_buffers(recurse=False)
            if not isinstance(module, NormBase)
        }
        if names := [name for name in comparison.buffers_of_data if name in own]:
            yield Finding(_describe_buffers(names), refuses=True)
        counts = [name for name in comparison.buffers_of_passes if name in own and not _approaches(name)]
        if counts and (self._spec.micro_batch is not None or strategy_of(self._spec).splits_batches):
            yield Finding(_describe_counts(counts), refuses=False)


def _does_without_training_mode(model: nn.Module) -> bool:
    """Whether the whole model is in evaluation mode and has dropout layers, which then drop nothing. Models loaded
    from Hugging Face's hub are in that mode."""
    return not model.training and any(isinstance(one, _DROPOUTS) and one.p > 0 for one in model.modules())


def _is_too_dear(task: Task, spec: TrainerSpec) -> bool:
    """Whether forward passes would take too much: a model without data, or one too large for the device's free
    memory, for the pipeline's memory limit or, on a CPU, for 1 GiB."""
    parameters = list(task.model.parameters())
    if any(parameter.is_meta for parameter in parameters):
        return True
    size = sum(parameter.nbytes for parameter in parameters)
    pipeline = spec.parallel.pipeline
    if pipeline is not None and pipeline.memory_bytes is not None and 2 * size > pipeline.memory_bytes:
        return True
    device = parameters[0].device
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return size > free / 2
    return size > _LARGEST_MODEL_BYTES


def _approaches(name: str) -> bool:
    """Whether a buffer of this name belongs to torch's spectral norm. Such a buffer approaches a value that
    depends only on the weights, so a change of it is no fault."""
    return name.rpartition(".")[2] in ("_u", "_v", "weight_u", "weight_v")


def _of_change(change: Change, *, differs: bool) -> Finding:
    if change.is_generator:
        text = (
            f"{change.where}, a random generator of the task's own, draws in the forward pass, which Oakum cannot "
            "seed for each sample: leave the `generator` argument out, torch's own draws then depend on seed, "
            "step and sample alone"
        )
        return Finding(text, refuses=True)
    is_number = isinstance(change.value, int | float | str) or differs
    text = (
        f"{change.where} changes with each forward pass ({change.what}). How many of them a step has depends on "
        "the nodes, and a node that joins knows nothing of it: let it follow from the step's number in "
        "`Task.on_step_start`, or keep it in an object of `extra_state` that `Task.on_step_end` changes"
    )
    return Finding(text, refuses=is_number)


def _describe_step(error: SteppedError, task: Task) -> str:
    name = type(error.optimizer).__name__
    which = "the task's optimizer" if error.optimizer is task.optimizer else f"another optimizer ({name})"
    return (
        f"`loss` steps {which}, on gradients of the samples of one rank alone: leave steps to Oakum. Where "
        "several losses train several parts of the model, as in a GAN, give one optimizer with a parameter group "
        "for each part, and return the sum of the losses, cut off with `detach` from the parts that they are not "
        "to train"
    )


def _describe_weights(names: list[str]) -> str:
    return (
        f"`loss` changes {some_of(names)}, which the optimizer trains: weights change only when a step is taken. "
        "Clamp or normalise them in optimizer.register_step_post_hook"
    )


def _describe_repetition(first: LossComputation, second: LossComputation) -> str:
    return (
        f"the loss of the same samples is {first.loss:.8g} and then {second.loss:.8g}: it depends on something "
        "beside weights, buffers and samples. Draw random numbers from torch without a generator of your own, and "
        "let what changes follow from the step's number in `Task.on_step_start`"
    )


def _describe_buffers(names: list[str]) -> str:
    return (
        f"{some_of(names)} is set by a forward pass from the samples of this rank alone, so the ranks would "
        "differ and rank 0's value would be kept: normalise within a sample (GroupNorm, LayerNorm), or compute "
        "it from all ranks' samples (oakum_worker.gathering.gather_batch)"
    )


def _describe_counts(names: list[str]) -> str:
    return (
        f"{some_of(names)} changes with each forward pass, of which a step has as many as there are micro-batches "
        "on a rank: let it follow from the step's number in `Task.on_step_start`"
    )
