"""A log, replayed: at every change of the idle nodes, at every arrival and end of a trainer, a plan is made.

The planner sees what it would see in service: which nodes are idle now and for how long they have been, what
it granted, and what the past of this very log taught it. It never sees an end of a hole before it comes.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from oakum_solver.forecast import CohortForecast
from oakum_solver.logs.holes import HoleLog, changes, count_changes
from oakum_solver.plan import Plan
from oakum_solver.problem import NodeGroup, Problem, Trainer
from oakum_solver.replay.accounts import Book, StepRows
from oakum_solver.replay.costs import RescaleCosts
from oakum_solver.replay.result import ReplayResult
from oakum_solver.replay.run import Cause, TrainerRun
from oakum_solver.replay.settings import LOOK_AHEAD_BOUNDS_S, LOOK_AHEAD_SHARE, ReplaySettings
from oakum_solver.replay.workload import WorkItem, Workload
from oakum_solver.solve import solve

Nodes = NDArray[np.int32]
Progress = Callable[[float, int, int], None]
"""Called with the fraction of the log's time done, the events done, and the events in all."""

_NOT_IDLE, _FREE = -2, -1


def replay(
    log: HoleLog, workload: Workload, settings: ReplaySettings, progress: Progress | None = None
) -> ReplayResult:
    """Replay the log. Raises `ProblemError` where the workload makes no sense for it."""
    started_s = time.perf_counter()
    engine = _Engine(log, workload, settings)
    engine.run(progress)
    return engine.result(time.perf_counter() - started_s)


class _Engine:
    def __init__(self, log: HoleLog, workload: Workload, settings: ReplaySettings) -> None:
        self.log, self.settings = log, settings
        costs = RescaleCosts(settings.cost, settings.stall_s, settings.startup_s)
        self.runs = [_run(item, costs, len(log.nodes)) for item in workload.items]
        self.waiting = list(range(len(self.runs)))
        """Runs that have not arrived, or wait for a place among `max_trainers`, in order of submission."""
        self.live: list[int] = []
        self.number = {run.trainer.id: index for index, run in enumerate(self.runs)}
        self.index = {name: index for index, name in enumerate(log.nodes)}
        self.names = np.array(log.nodes, dtype=object)
        self.owner: NDArray[np.int32] = np.full(len(log.nodes), _NOT_IDLE, dtype=np.int32)
        """For each node, the run that has it, or one of the constants above."""
        self.cohort: NDArray[np.int32] = np.zeros(len(log.nodes), dtype=np.int32)
        """For each idle node, the number of the event at which it became idle."""
        self.born_s = [0.0]
        """When the event of each number was."""
        self.forecast = CohortForecast()
        self.ends: list[tuple[float, int, int]] = []
        """(end_s, run, version): when runs end if nothing changes."""
        self.version = [0] * len(self.runs)
        self.idle_node_s = 0.0
        self.rows = StepRows()
        self.idle_steps: list[tuple[float, int]] = []
        self.look_aheads_s: list[float] = []
        users = {run.trainer.user for run in self.runs} - {None}
        cap = settings.user_cap
        self._user_caps = {} if cap is None else {str(user): cap for user in users}

    def run(self, progress: Progress | None) -> None:
        total = count_changes(self.log)
        now_s, idle = 0.0, 0
        for done, (at_s, left, came) in enumerate(self._changes_and_end(), start=1):
            while (own_s := self._next_own_event_s()) < at_s:
                self.idle_node_s += idle * (own_s - now_s)
                now_s = own_s
                self._event(now_s, _NONE, _NONE)
            self.idle_node_s += idle * (at_s - now_s)
            now_s = at_s
            idle += len(came) - len(left)
            self.idle_steps.append((now_s, idle))
            if done <= total:
                self._event(now_s, left, came)
            if progress is not None:
                progress(now_s / self.log.duration_s, min(done, total), total)
        for run in self.runs:
            run.advance(max(run.now_s, now_s))

    def _changes_and_end(self) -> Iterator[tuple[float, Nodes, Nodes]]:
        yield from changes(self.log)
        yield self.log.duration_s, _NONE, _NONE

    def _next_own_event_s(self) -> float:
        """When the next trainer arrives or ends."""
        while self.ends and self.ends[0][2] != self.version[self.ends[0][1]]:
            heapq.heappop(self.ends)
        end_s = self.ends[0][0] if self.ends else math.inf
        return min(end_s, self._next_arrival_s(), self._next_guarantee_s())

    def _next_guarantee_s(self) -> float:
        """When the guard's word on a trainer next changes."""
        guard = self.settings.guard
        if guard.wait_s == math.inf:
            return math.inf
        runs = (self.runs[index] for index in self.live)
        return min((r.waited_to_s + guard.changes_in_s(r.wait, bool(r.nodes)) for r in runs), default=math.inf)

    def _next_arrival_s(self) -> float:
        most = self.settings.max_trainers
        if not self.waiting or (most is not None and len(self.live) >= most):
            return math.inf
        return self.runs[self.waiting[0]].item.submit_s

    def _event(self, now_s: float, left: Nodes, came: Nodes) -> None:
        """Trainers end, nodes leave and come, trainers arrive; then the rest is planned anew.

        Who ends as its nodes leave has ended: otherwise it would wait for nodes to train nothing more.
        """
        self.born_s.append(now_s)
        for index in self.live if self.settings.guard.wait_s < math.inf else ():
            self.runs[index].wait_until(now_s, self.settings.guard)
        self._end_runs(now_s)
        self._take_away(now_s, left)
        self.owner[came] = _FREE
        self.cohort[came] = len(self.born_s) - 1
        while self._next_arrival_s() <= now_s:
            run = self.waiting.pop(0)
            self.live.append(run)
            self.runs[run].arrive(now_s)
        idle = np.flatnonzero(self.owner != _NOT_IDLE)
        if self.live:
            problem = self._problem(now_s, idle)
            plan = solve(problem, self.settings.policy, explained=False)
            self._carry_out(now_s, problem, plan)
            self._note(now_s, len(idle), plan)
        elif self.rows.used and self.rows.used[-1]:
            self._note(now_s, len(idle), _NO_PLAN)

    def _take_away(self, now_s: float, left: Nodes) -> None:
        """Foreground jobs take nodes."""
        if not len(left):
            return
        owners = self.owner[left]
        for run in np.unique(owners[owners >= 0]).tolist():
            self._resize(run, now_s, taken=set(left[owners == run].tolist()), cause=Cause.PREEMPTION)
        born_s = np.array([self.born_s[event] for event in self.cohort[left].tolist()])
        self.forecast.learn(now_s - born_s)
        self.owner[left] = _NOT_IDLE

    def _end_runs(self, now_s: float) -> None:
        """Nodes of those that have trained their last sample are free."""
        while self._next_end_s() <= now_s:
            run = heapq.heappop(self.ends)[1]
            self.version[run] += 1
            ended = self.runs[run]
            ended.advance(now_s)
            self.owner[sorted(ended.nodes)] = _FREE
            ended.end()
            self.live.remove(run)

    def _next_end_s(self) -> float:
        while self.ends and self.ends[0][2] != self.version[self.ends[0][1]]:
            heapq.heappop(self.ends)
        return self.ends[0][0] if self.ends else math.inf

    def _problem(self, now_s: float, idle: NDArray[np.int64]) -> Problem:
        return Problem(
            trainers=tuple(self._trainer(run, now_s) for run in self.live),
            groups=self._groups(now_s, idle),
            look_ahead_s=self._look_ahead_s(now_s, idle),
            objective=self.settings.objective,
            time_limit_s=self.settings.time_limit_s,
            terms=self.settings.terms,
            milp_solver=self.settings.milp_solver,
            gap=self.settings.gap,
            user_caps=self._user_caps,
        )

    def _look_ahead_s(self, now_s: float, idle: NDArray[np.int64]) -> float:
        """T of the plan that is made now; as long as no hole has ended, the longest."""
        seconds = self.settings.look_ahead_s
        if seconds is None:
            shortest_s, longest_s = LOOK_AHEAD_BOUNDS_S
            seconds = longest_s
            if len(idle) and self.forecast.learned:
                born_s = np.array([self.born_s[cohort] for cohort in self.cohort[idle].tolist()])
                mean_s = float(self.forecast.remaining_s(now_s - born_s).mean())
                seconds = min(longest_s, max(shortest_s, LOOK_AHEAD_SHARE * mean_s))
        self.look_aheads_s.append(seconds)
        return seconds

    def _trainer(self, index: int, now_s: float) -> Trainer:
        """The trainer as it is now. Facts that the objective does not ask for stay away: they cost time."""
        run = self.runs[index]
        if run.item.samples is None and not self.settings.wants_facts:
            return run.trainer
        run.advance(now_s)
        return dataclasses.replace(
            run.trainer,
            guaranteed=self.settings.guard.guarantees(run.wait),
            attained_samples=run.samples,
            remaining_samples=run.remaining_samples,
            deadline_in_s=run.trainer.deadline_in_s + run.item.submit_s - now_s,
            waited_s=0.0 if run.nodes else now_s - run.waiting_since_s,
        )

    def _groups(self, now_s: float, idle: NDArray[np.int64]) -> tuple[NodeGroup, ...]:
        """The idle nodes by owner and, where the planner may know it, by cohort."""
        owners = self.owner[idle].astype(np.int64)
        cohorts = self.cohort[idle].astype(np.int64) if self.settings.groups else np.zeros_like(owners)
        keys = cohorts * (len(self.runs) + 1) + owners + 1
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        names = self.names[idle[order]].tolist()
        lasts = [*firsts[1:].tolist(), len(names)][: len(firsts)]
        cohort_of = (keys[firsts] // (len(self.runs) + 1)).tolist()
        owner_of = (keys[firsts] % (len(self.runs) + 1) - 1).tolist()
        if self.settings.groups:
            horizons = self.forecast.remaining_s(now_s - np.array([self.born_s[c] for c in cohort_of])).tolist()
        else:
            horizons = [math.inf] * len(cohort_of)
        return tuple(
            NodeGroup(
                tuple(names[first:last]),
                owner=None if owner < 0 else self.runs[owner].trainer.id,
                horizon_s=horizon_s,
                cohort=str(cohort) if self.settings.groups else None,
            )
            for first, last, cohort, owner, horizon_s in zip(
                firsts.tolist(), lasts, cohort_of, owner_of, horizons, strict=True
            )
        )

    def _carry_out(self, now_s: float, problem: Problem, plan: Plan) -> None:
        """Give and take what the plan changes: first take, then give."""
        given = []
        for allocation in plan.allocations:
            held = problem.held[allocation.trainer]
            if len(held) == len(allocation.nodes):
                continue
            run = self.number[allocation.trainer]
            before = {self.index[name] for name in held}
            after = {self.index[name] for name in allocation.nodes}
            if taken := before - after:
                self.owner[sorted(taken)] = _FREE
                self._resize(run, now_s, taken=taken, cause=Cause.SHRINK)
            if new := after - before:
                given.append((run, new))
        for run, new in given:
            self.owner[sorted(new)] = run
            self._resize(run, now_s, given=new)

    def _resize(
        self,
        index: int,
        now_s: float,
        given: set[int] | None = None,
        taken: set[int] | None = None,
        cause: Cause = Cause.SHRINK,
    ) -> None:
        run = self.runs[index]
        run.advance(now_s)
        if taken:
            run.take(taken, cause)
        if given:
            run.give(given)
        self.version[index] += 1
        if (end_s := run.finish_s()) < math.inf:
            heapq.heappush(self.ends, (end_s, index, self.version[index]))

    def _note(self, now_s: float, idle: int, plan: Plan) -> None:
        live = [self.runs[run] for run in self.live]
        self.rows.note(now_s, idle, live, plan, self.settings.objective)

    def result(self, wall_s: float) -> ReplayResult:
        """What the replay has shown; to be asked for after `run`."""
        events = len(self.born_s) - 1
        look_ahead_s = float(np.mean(self.look_aheads_s)) if self.look_aheads_s else 0.0
        book = Book(self.log, self.settings, self.runs, self.idle_steps, self.idle_node_s, events, look_ahead_s)
        return book.result(self.rows.steps(), wall_s)


_NONE: Nodes = np.zeros(0, dtype=np.int32)
_NO_PLAN = Plan((), 0.0, 0.0, "none", 0.0, optimal=True)
"""What holds while there is no trainer."""


def _run(item: WorkItem, costs: RescaleCosts, num_nodes: int) -> TrainerRun:
    trainer = costs.charged(item.trainer)
    most = min(trainer.max_nodes, num_nodes)
    rates = tuple(trainer.curve.rate(n) if n >= trainer.min_nodes else 0.0 for n in range(most + 1))
    return TrainerRun(item, trainer, rates, sizes=[(item.submit_s, 0)])
