"""When a trainer's task is evaluated, on which ranks, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from oakum_worker.errors import TaskError
from oakum_worker.evaluation import EvaluatingRanks, evaluated_by, numbers_by_name
from oakum_worker.parallel.step_engine import StepEngine
from oakum_worker.protocol import BestEvaluation
from oakum_worker.randomness.counters import mix, seed_everything
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.live_state import LiveState
from oakum_worker.step.metric_watch import MetricWatch
from oakum_worker.step.progress import Progress
from oakum_worker.step.ranks import Ranks
from oakum_worker.step.task_clock import TaskClock
from oakum_worker.step.weight_average import WeightAverage
from oakum_worker.task import Task


class Evaluations:
    """The evaluations of one rank's task between steps."""

    def __init__(
        self,
        task: Task,
        spec: TrainerSpec,
        state: LiveState,
        progress: Progress,
        ranks: Ranks,
        engine: StepEngine,
        clock: TaskClock,
        *,
        metric: MetricWatch | None = None,
        average: WeightAverage | None = None,
    ) -> None:
        """`metric` records what the spec watches; `average` is that of the weights, where the spec has one."""
        self._task, self._spec = task, spec
        self._state, self._progress, self._ranks = state, progress, ranks
        self._engine, self._clock = engine, clock
        self._metric = metric
        self._average = average if spec.ema is not None and spec.ema.evaluate else None

    @property
    def is_due(self) -> bool:
        """Whether the task is to be evaluated at this step boundary: every so many steps or epochs, and after the
        last epoch. False for a task without `evaluate`."""
        cursor, spec = self._state.cursor, self._spec.evaluate
        if self._task.evaluate is None or cursor.step == 0:
            return False
        has_all_epochs = self._progress.has_all_epochs
        if spec is not None and spec.every_steps is not None:
            return cursor.step % spec.every_steps == 0 or has_all_epochs
        every = (None if spec is None else spec.every_epochs) or self._task.evaluate_every_epochs
        return cursor.consumed == 0 and (cursor.epoch % every == 0 or has_all_epochs)

    @property
    def is_owed(self) -> bool:
        """Whether an evaluation is due whose value of the watched metric was not recorded: the ranks that began it
        were lost. Equal on every rank after `agree`."""
        return self._metric is not None and self.is_due and self._metric.step < self._state.step_count

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation by the metric that the spec names; None before the first one and without such a
        metric."""
        return None if self._metric is None else self._metric.best

    @property
    def ended_early(self) -> str:
        """Why training ends before its last epoch; empty where it does not."""
        return "" if self._metric is None or self._progress.has_all_epochs else self._metric.reason_to_end

    @property
    def include_this_rank(self) -> bool:
        """Whether this rank has to call `run`: rank 0, and all ranks where evaluations communicate."""
        return self._task.evaluates_together or self._engine.evaluates_on(self._ranks.rank)

    def run(self) -> dict[str, float]:
        """The task's metrics by name; empty if the task has no `evaluate`, and on ranks that only help.

        Call it on every rank for which `include_this_rank` holds, and on no other. Raises `TaskError` if the task
        returns something other than numbers by name, or not the metric that the spec names, and whatever the
        task's code raises.
        """
        task = self._task
        if task.evaluate is None:
            return {}
        modes = {module: module.training for module in task.model.modules()}
        seed_everything(mix(self._spec.seed, self._state.step_count))
        task.model.eval()
        with self._state.boundary:
            self._state.is_evaluating = True
        metrics: Any = {}
        is_here = False
        try:
            with (
                nullcontext() if self._average is None else self._average.in_place(),
                self._engine.whole_model() as is_here,
                torch.no_grad(),
                evaluated_by(self._evaluating_ranks()),
                self._clock.computing(),
            ):
                if is_here:
                    with self._ranks.lost_in_passes("in an evaluation"):
                        metrics = task.evaluate(task.model)
        finally:
            _restore_modes(modes)
            self._state.is_evaluating = False
        numbers = numbers_by_name(metrics, "evaluate")
        if is_here and self._metric is not None:
            self._metric.value_of(numbers)
        return numbers

    def record(self, metrics: Mapping[str, float]) -> bool:
        """Record rank 0's value of the metric that the spec names; a collective where the spec names one. Returns
        whether it is the best so far, equal on every rank, as is whether training then has `ended_early`.

        Raises `GroupError` where a rank is gone; the evaluation is then owed.
        """
        if self._metric is None:
            return False
        mine = self._metric.value_of(metrics) if self._ranks.rank == 0 else None
        value = self._ranks.gather(mine)[0]
        with self._state.boundary:
            return self._metric.record(self._state.step_count, value)

    def agree(self) -> None:
        """Take over the evaluations of the rank that has recorded most, once all ranks are at the same step
        boundary: others may have been cut off before they did. A collective where the spec names a metric. Raises
        `GroupError` where a rank is gone."""
        if self._metric is not None:
            records = self._ranks.gather(self._metric.state_dict())
            with self._state.boundary:
                self._metric.load_state_dict(max(records, key=lambda record: record["step"]))

    def _evaluating_ranks(self) -> EvaluatingRanks:
        """The ranks among which `sum_over` divides a data set: all, where all call the task's `evaluate`."""
        seed, ranks = mix(self._spec.seed, self._state.step_count), self._ranks
        if self._task.evaluates_together and self._engine.has_model_on_each_rank:
            return EvaluatingRanks(ranks.group, ranks.rank, ranks.world_size, seed)
        return EvaluatingRanks(seed=seed)


def watched_metric(task: Task, spec: TrainerSpec) -> MetricWatch | None:
    """The record of the metric by which the spec keeps the best checkpoint; None where it names none. Raises
    `TaskError` where the spec has `evaluate` and the task has not."""
    if spec.evaluate is not None and task.evaluate is None:
        raise TaskError(
            "the spec has `evaluate`, and the task has no function for it: return Task(..., evaluate=...), or "
            "leave it out of the spec"
        )
    return None if spec.evaluate is None or spec.evaluate.keep_best is None else MetricWatch(spec.evaluate)


def _restore_modes(modes: dict[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training
