"""Sums up a replay: its steps, the trainers' outcomes, and totals compared with the ideal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.parts import whole_idle_s
from oakum_solver.objectives import NamedObjective, Objective
from oakum_solver.plan import Plan
from oakum_solver.problem import PlannedTrainer
from oakum_solver.replay.ideal import ideal_achievement
from oakum_solver.replay.result import Losses, ReplayResult, ReplaySteps, TrainerOutcome
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.trainer_run import Cause, TrainerRun


def sample_worth(objective: Objective, trainer: PlannedTrainer) -> float:
    """Factor by which a trainer's samples are multiplied before achievements of several trainers are added up.

    It is the worth of one sample under an objective that is linear in samples; under any other, the trainer's
    weight times the seconds that one node takes for a sample.
    """
    if objective is NamedObjective.THROUGHPUT:
        return trainer.weight
    if objective is NamedObjective.WEIGHTED:
        return trainer.weight / (trainer.curve.rate(trainer.max_nodes) or 1.0)
    rate_one = trainer.curve.rate(1) or next((rate / n for n, rate in trainer.curve.points if rate > 0), 1.0)
    return trainer.weight / rate_one


@dataclass
class StepRows:
    """Collects the steps of a replay, column by column."""

    time_s: list[float] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    optimal: list[bool] = field(default_factory=list)
    solve_s: list[float] = field(default_factory=list)
    solver: list[str] = field(default_factory=list)

    def note(self, now_s: float, idle: int, live: Sequence[TrainerRun], plan: Plan, objective: Objective) -> None:
        """Add the row for the event at `now_s`: the number of idle nodes, the sizes and rates of the live
        trainers, and the plan made then."""
        sizes = [len(run.nodes) for run in live]
        self.time_s.append(now_s)
        self.idle.append(idle)
        self.used.append(sum(sizes))
        self.running.append(sum(size > 0 for size in sizes))
        rates = (
            run.rates[size] * sample_worth(objective, run.trainer) for run, size in zip(live, sizes, strict=True)
        )
        self.rate.append(sum(rates))
        self.value.append(plan.value)
        self.bound.append(plan.bound)
        self.optimal.append(plan.optimal)
        self.solve_s.append(plan.solve_s)
        self.solver.append(plan.solver)

    def steps(self) -> ReplaySteps:
        """All steps as arrays."""
        return ReplaySteps(
            time_s=np.array(self.time_s),
            idle_nodes=np.array(self.idle, dtype=np.int64),
            used_nodes=np.array(self.used, dtype=np.int64),
            running_trainers=np.array(self.running, dtype=np.int64),
            rate=np.array(self.rate),
            value=np.array(self.value),
            bound=np.array(self.bound),
            optimal=np.array(self.optimal, dtype=np.bool_),
            solve_s=np.array(self.solve_s),
            solver=tuple(self.solver),
        )


@dataclass(frozen=True)
class ReplayAccounts:
    """What a replay has recorded, from which `result` computes the totals."""

    log: HoleLog
    settings: ReplaySettings
    runs: Sequence[TrainerRun]
    idle_steps: Sequence[tuple[float, int]]
    """(time_s, number of idle nodes from that time on)."""
    idle_node_s: float
    events: int
    look_ahead_s: float
    """Mean look-ahead of the plans, in seconds."""

    def result(self, steps: ReplaySteps, wall_s: float) -> ReplayResult:
        """The replay's result, with totals and yardsticks; `wall_s` is the replay's own run time in seconds."""
        log, settings, hours = self.log, self.settings, self.log.duration_s / 3600
        equivalent = self.idle_node_s / self.log.duration_s
        achieved = sum(run.samples * self._unit(run) for run in self.runs)
        achievable = self._ideal([(0.0, log.duration_s, equivalent)], math.ceil(equivalent))
        bound = self._ideal(self._idle_intervals(), max((idle for _, idle in self.idle_steps), default=0))
        granted = sum(run.granted_node_s for run in self.runs) / 3600
        lost = {cause: sum(run.lost_node_s[cause] for run in self.runs) / 3600 for cause in Cause}
        return ReplayResult(
            log=log.name,
            policy=settings.policy,
            cost=settings.cost,
            objective=str(settings.objective),
            look_ahead_s=self.look_ahead_s,
            nodes=len(log.nodes),
            hours=hours,
            cut_hours=log.cut_s / 3600,
            events=self.events,
            idle_node_hours=self.idle_node_s / 3600,
            used_node_hours=granted,
            productive_node_hours=sum(run.productive_node_s for run in self.runs) / 3600,
            equivalent_nodes=equivalent,
            samples=sum(run.samples for run in self.runs),
            achieved=achieved,
            achievable=achievable,
            efficiency=achieved / achievable if achievable else math.nan,
            zero_cost_bound=bound / achievable if achievable else math.nan,
            losses=Losses(
                startup=lost[Cause.STARTUP],
                grow=lost[Cause.GROW],
                shrink=lost[Cause.SHRINK],
                preemption=lost[Cause.PREEMPTION],
                unallocated=max(0.0, self.idle_node_s / 3600 - granted),
            ),
            rescales=sum(run.rescales for run in self.runs),
            trainers=tuple(_outcome(run) for run in self.runs),
            steps=steps,
            wall_s=wall_s,
            notes=log.notes,
            whole_idle_hours=None if (whole_s := whole_idle_s(log)) is None else whole_s / 3600,
        )

    def _idle_intervals(self) -> list[tuple[float, float, float]]:
        points = [(0.0, 0), *self.idle_steps]
        return [
            (start_s, end_s, float(idle))
            for (start_s, idle), (end_s, _) in itertools.pairwise(points)
            if end_s > start_s
        ]

    def _ideal(self, idle: list[tuple[float, float, float]], most_nodes: int) -> float:
        units = [self._unit(run) for run in self.runs]
        return ideal_achievement(
            [_worth_by_size(run, unit) for run, unit in zip(self.runs, units, strict=True)],
            [run.item.submit_s for run in self.runs],
            [
                math.inf if run.item.samples is None else run.item.samples * unit
                for run, unit in zip(self.runs, units, strict=True)
            ],
            idle,
            most_nodes,
            self.settings.max_trainers,
        )

    def _unit(self, run: TrainerRun) -> float:
        """`sample_worth` of the run's trainer under the replay's objective."""
        return sample_worth(self.settings.objective, run.trainer)


def _worth_by_size(run: TrainerRun, unit: float) -> NDArray[np.float64]:
    worth = np.array(run.rates) * unit
    worth[[n for n in range(1, len(worth)) if not run.trainer.allows(n)]] = -np.inf
    return worth


def _outcome(run: TrainerRun) -> TrainerOutcome:
    return TrainerOutcome(
        name=run.trainer.id,
        submit_s=run.item.submit_s,
        start_s=run.start_s,
        end_s=run.end_s,
        samples=run.samples,
        wanted_samples=run.item.samples,
        node_hours=run.granted_node_s / 3600,
        rescales=run.rescales,
        sizes=tuple(run.sizes),
    )
