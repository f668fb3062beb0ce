"""Replays a log: makes a plan whenever the idle nodes change or a trainer arrives or ends.

The planner knows what it would know in the service: which nodes are idle and since when, what it has granted, and
what the past of this log teaches. It never knows when a hole will end.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import ProblemError
from oakum_solver.exploration import Exploration
from oakum_solver.forecast import HoleForecast, IdleNode, group_nodes
from oakum_solver.hosts import hosts_of, leaving_together, within_hosts
from oakum_solver.logs.holes import HoleLog, changes, count_changes
from oakum_solver.node_preference import NodePreference
from oakum_solver.plan import Plan
from oakum_solver.problem import Host, NodeGroup, PlannedTrainer, Problem
from oakum_solver.replay.accounts import ReplayAccounts, StepRows
from oakum_solver.replay.by_number import renamed_by_number
from oakum_solver.replay.costs import RescaleCosts
from oakum_solver.replay.held_bundles import HeldBundles
from oakum_solver.replay.learning import Comparison, with_learnt_curves
from oakum_solver.replay.rate_book import RateBook
from oakum_solver.replay.result import LearntCurves, ReplayResult
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.trainer_run import Cause, TrainerRun
from oakum_solver.replay.workload import WorkItem, Workload
from oakum_solver.solve import solve

Nodes = NDArray[np.int32]
Progress = Callable[[float, int, int], None]
"""Called with the share of the log's time done, the number of events done, and the number of all events."""

_NOT_IDLE, _FREE = -2, -1


def replay(
    log: HoleLog, workload: Workload, settings: ReplaySettings, progress: Progress | None = None
) -> ReplayResult:
    """Replay `workload` on the holes of `log`. Raises `ProblemError` where the workload does not fit the log."""
    started_s = time.perf_counter()
    engine = _Replay(log, workload, settings)
    engine.run(progress)
    return engine.result(time.perf_counter() - started_s)


def replay_both(
    log: HoleLog, workload: Workload, settings: ReplaySettings, progress: Progress | None = None
) -> ReplayResult:
    """As `replay` with known curves, and once more with curves that have to be learnt, for `ReplayResult.learnt`;
    by default as in `Exploration`."""

    def half(done: int) -> Progress | None:
        if progress is None:
            return None
        show = progress
        return lambda share, events, total: show((done + share) / 2, done * total + events, 2 * total)

    known = replay(log, workload, dataclasses.replace(settings, learning=None), half(0))
    started_s = time.perf_counter()
    engine = _Replay(log, workload, dataclasses.replace(settings, learning=settings.learning or Exploration()))
    engine.run(half(1))
    wall_s = time.perf_counter() - started_s
    return dataclasses.replace(known, learnt=engine.learnt(), wall_s=known.wall_s + wall_s)


class _Replay:
    def __init__(self, log: HoleLog, workload: Workload, settings: ReplaySettings) -> None:
        self.log, self.settings = log, settings
        costs = RescaleCosts(settings.cost, settings.stall_s, settings.startup_s)
        self.bundles = HeldBundles(log)
        if settings.nodes_by_number and any(item.trainer.bundle != 1 for item in workload.items):
            raise ProblemError("nodes_by_number: expected trainers whose fragments have one slot each")
        self.runs = [_run(item, costs, self.bundles, len(log.nodes), settings.learning) for item in workload.items]
        self.comparison = Comparison()
        """With curves that are learnt: their plans beside those of the true ones."""
        self.measured_s = [math.inf] * len(self.runs)
        """For each run, when enough is measured to change a plan if its nodes do not change."""
        self.waiting = list(range(len(self.runs)))
        """Indexes of the runs that have not arrived or have to wait because of `max_trainers`, in order of
        submission."""
        self.live: list[int] = []
        self.number = {run.trainer.id: index for index, run in enumerate(self.runs)}
        self.index = {name: index for index, name in enumerate(log.nodes)}
        self.names = np.array(log.nodes, dtype=object)
        self.owner: NDArray[np.int32] = np.full(len(log.nodes), _NOT_IDLE, dtype=np.int32)
        """For each node, the index of the run that holds it, or one of the constants above."""
        self.cohort: NDArray[np.int32] = np.zeros(len(log.nodes), dtype=np.int32)
        """For each idle node, the number of the event at which it became idle."""
        self.born_at_s: NDArray[np.float64] = np.zeros(len(log.nodes))
        """For each idle node, the time in seconds at which it became idle."""
        self.born_s = [0.0]
        """Time of each event in seconds, by the event's number."""
        self.forecast = HoleForecast()
        self.preference = NodePreference(len(log.nodes))
        self.ends: list[tuple[float, int, int]] = []
        """Heap of (end_s, run, version): when each run ends if its nodes do not change."""
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
        for done, (at_s, leaving, coming) in enumerate(self._changes_and_end(), start=1):
            while (own_s := self._next_own_event_s()) < at_s:
                self.idle_node_s += idle * (own_s - now_s)
                now_s = own_s
                self._event(now_s, _NONE, _NONE)
            self.idle_node_s += idle * (at_s - now_s)
            now_s = at_s
            idle += len(coming) - len(leaving)
            self.idle_steps.append((now_s, idle))
            if done <= total:
                self._event(now_s, leaving, coming)
            if progress is not None:
                progress(now_s / self.log.duration_s, min(done, total), total)
        for run in self.runs:
            run.advance(max(run.now_s, now_s))

    def _changes_and_end(self) -> Iterator[tuple[float, Nodes, Nodes]]:
        yield from changes(self.log)
        yield self.log.duration_s, _NONE, _NONE

    def _next_own_event_s(self) -> float:
        """Time at which the next trainer arrives or ends."""
        while self.ends and self.ends[0][2] != self.version[self.ends[0][1]]:
            heapq.heappop(self.ends)
        end_s = self.ends[0][0] if self.ends else math.inf
        measured_s = min((self.measured_s[run] for run in self.live), default=math.inf)
        return min(end_s, self._next_arrival_s(), self._next_guarantee_s(), measured_s)

    def _next_guarantee_s(self) -> float:
        """Time at which the starvation guard's answer for a trainer changes next."""
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

    def _event(self, now_s: float, leaving: Nodes, coming: Nodes) -> None:
        """Handle one event: trainers end, nodes leave and come, trainers arrive; then make a plan.

        Ends come first, so that a trainer that trains its last sample as its nodes leave has ended. Otherwise it
        would wait for nodes without anything left to train.
        """
        self.born_s.append(now_s)
        for index in self.live if self.settings.guard.wait_s < math.inf else ():
            self.runs[index].wait_until(now_s, self.settings.guard)
        self._end_runs(now_s)
        self._take_away(now_s, leaving)
        self.owner[coming] = _FREE
        self.cohort[coming] = len(self.born_s) - 1
        self.born_at_s[coming] = now_s
        while self._next_arrival_s() <= now_s:
            run = self.waiting.pop(0)
            self.live.append(run)
            self.runs[run].arrive(now_s)
        idle = np.flatnonzero(self.owner != _NOT_IDLE)
        if self.live:
            known = self._problem(now_s, idle)
            problem = self._as_learnt(now_s, known)
            self.look_aheads_s.append(problem.look_ahead_s)
            plan = solve(problem, self.settings.policy, explained=False)
            if problem is not known:
                self.comparison.note(now_s, known, plan, self.settings.policy)
            if self.settings.nodes_by_number:
                plan = renamed_by_number(plan, problem)
            self._carry_out(now_s, problem, plan)
            self._note(now_s, len(idle), plan)
        elif self.rows.used and self.rows.used[-1]:
            self._note(now_s, len(idle), _NO_PLAN)

    def _take_away(self, now_s: float, leaving: Nodes) -> None:
        """Take the nodes `leaving`, on which foreground jobs start, from the runs that hold them. Learns from this
        which nodes foreground jobs take first, and how long holes last."""
        if not len(leaving):
            return
        idle = np.flatnonzero(self.owner != _NOT_IDLE)
        self.preference.learn(idle, np.isin(idle, leaving), self._since_s(idle))
        owners = self.owner[leaving]
        for run in np.unique(owners[owners >= 0]).tolist():
            lost = self.bundles.leaving_with(leaving[owners == run].tolist())
            self.owner[sorted(lost)] = _FREE
            self._resize(run, now_s, lost=lost, cause=Cause.PREEMPTION)
        self.forecast.learn(now_s - self._since_s(leaving))
        self.owner[leaving] = _NOT_IDLE

    def _end_runs(self, now_s: float) -> None:
        """End the runs that have trained their last sample, and free their nodes."""
        while self._next_end_s() <= now_s:
            run = heapq.heappop(self.ends)[1]
            self.version[run] += 1
            ended = self.runs[run]
            ended.advance(now_s)
            self.owner[sorted(ended.nodes)] = _FREE
            self.bundles.end(ended.nodes)
            ended.end()
            self.live.remove(run)

    def _next_end_s(self) -> float:
        while self.ends and self.ends[0][2] != self.version[self.ends[0][1]]:
            heapq.heappop(self.ends)
        return self.ends[0][0] if self.ends else math.inf

    def _problem(self, now_s: float, idle: NDArray[np.int64]) -> Problem:
        offered = self._worth_starting(now_s, idle)
        trainers = tuple(self._trainer(run, now_s) for run in self.live)
        groups = self._groups(now_s, offered)
        hosts: tuple[Host, ...] = ()
        if any(trainer.bundle != 1 for trainer in trainers):
            trainers, groups, hosts = self._on_hosts(trainers, groups)
        return self.settings.problem(
            trainers,
            groups,
            mean_rest_s=self._mean_rest_s(now_s, idle),
            withheld=len(idle) - len(offered),
            user_caps=self._user_caps,
            hosts=hosts,
        )

    def _on_hosts(
        self, trainers: tuple[PlannedTrainer, ...], groups: tuple[NodeGroup, ...]
    ) -> tuple[tuple[PlannedTrainer, ...], tuple[NodeGroup, ...], tuple[Host, ...]]:
        """The trainers with the numbers of slots that the hosts make up, the groups with one forecast for the
        slots of a host, and the hosts."""
        slots = leaving_together(
            IdleNode(
                name, group.horizon_s, group.owner, cohort=group.cohort, host=self.bundles.host[self.index[name]]
            )
            for group in groups
            for name in group.nodes
        )
        hosts = hosts_of(slots, self.bundles.sizes, self.bundles.together())
        return tuple(within_hosts(trainer, hosts, slots) for trainer in trainers), group_nodes(slots), hosts

    def _as_learnt(self, now_s: float, known: Problem) -> Problem:
        """The problem with the curves that have been learnt by now, where they are not known."""
        if self.settings.learning is None:
            return known
        runs = [self.runs[index] for index in self.live]
        for index, run in zip(self.live, runs, strict=True):
            run.advance(now_s)
            self.measured_s[index] = run.measured_s()
        books = [run.book for run in runs if run.book is not None]
        had_node_s = [run.granted_node_s for run in runs]
        trainers = with_learnt_curves(known.trainers, books, had_node_s, known.groups)
        return dataclasses.replace(known, trainers=trainers)

    def _mean_rest_s(self, now_s: float, idle: NDArray[np.int64]) -> float | None:
        """For how many seconds the idle nodes are expected to stay idle, on average; None where that is not known,
        or does not matter."""
        if self.settings.look_ahead_s is not None or not len(idle) or not self.forecast.learned:
            return None
        return float(self.forecast.remaining_s(now_s - self._since_s(idle)).mean())

    def _trainer(self, index: int, now_s: float) -> PlannedTrainer:
        """The run's trainer at `now_s`. Facts that the objective does not use are left out, to save time."""
        run = self.runs[index]
        if run.item.samples is None and not self.settings.wants_facts:
            return run.trainer
        run.advance(now_s)
        return dataclasses.replace(
            run.trainer,
            guaranteed=self.settings.guard.guarantees(run.wait),
            guaranteed_for_s=self.settings.guard.guaranteed_for_s(run.wait),
            attained_samples=run.samples,
            remaining_samples=run.remaining_samples,
            deadline_in_s=run.trainer.deadline_in_s + run.item.submit_s - now_s,
            waited_s=0.0 if run.nodes else now_s - run.waiting_since_s,
        )

    def _since_s(self, nodes: NDArray[np.int64] | Nodes) -> NDArray[np.float64]:
        """For each of these idle nodes, the time in seconds at which it became idle."""
        return self.born_at_s[nodes]

    def _worth_starting(self, now_s: float, idle: NDArray[np.int64]) -> NDArray[np.int64]:
        """The idle nodes, without free ones that are expected to be taken before a trainer has started up
        there."""
        startup_s = min((self.runs[run].trainer.startup_s for run in self.live), default=0.0)
        if startup_s == 0.0 or not self.forecast.learned or self._any_guaranteed():
            return idle
        rest_s = self.forecast.remaining_s(now_s - self._since_s(idle))
        worth: NDArray[np.int64] = idle[(self.owner[idle] != _FREE) | (rest_s >= startup_s)]
        return worth

    def _any_guaranteed(self) -> bool:
        """Whether the starvation guard guarantees a trainer nodes, so that even short holes are worth trying."""
        return any(self.settings.guard.guarantees(self.runs[run].wait) for run in self.live)

    def _groups(self, now_s: float, idle: NDArray[np.int64]) -> tuple[NodeGroup, ...]:
        """Groups of the idle nodes by owner and, with the setting `groups`, by cohort.

        In each group, nodes that are expected to stay idle longest come first, or with the setting
        `nodes_by_number` those with the lowest numbers.
        """
        if not self.settings.nodes_by_number:
            idle = idle[self.preference.order(idle, self._since_s(idle))]
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
        """Change the runs' nodes as the plan says: first take nodes from all runs that shrink, then give nodes
        to those that grow."""
        growing = []
        for allocation in plan.allocations:
            held = problem.held[allocation.trainer]
            if len(held) == len(allocation.nodes) and {*held} == {*allocation.nodes}:
                continue
            run = self.number[allocation.trainer]
            before = {self.index[name] for name in held}
            after = {self.index[name] for name in allocation.nodes}
            if taken := before - after:
                self.owner[sorted(taken)] = _FREE
                self._resize(run, now_s, lost=taken, cause=Cause.SHRINK)
            if new := after - before:
                growing.append((run, new))
        for run, new in growing:
            self.owner[sorted(new)] = run
            self._resize(run, now_s, gained=new)

    def _resize(
        self,
        index: int,
        now_s: float,
        gained: set[int] | None = None,
        lost: set[int] | None = None,
        cause: Cause = Cause.SHRINK,
    ) -> None:
        run = self.runs[index]
        run.advance(now_s)
        if lost:
            self.bundles.end(lost)
            run.take(lost, cause)
        if gained:
            self.bundles.begin(gained, run.trainer.bundle)
            run.give(gained)
        self.version[index] += 1
        self.measured_s[index] = run.measured_s()
        if (end_s := run.finish_s()) < math.inf:
            heapq.heappush(self.ends, (end_s, index, self.version[index]))

    def _note(self, now_s: float, idle: int, plan: Plan) -> None:
        live = [self.runs[run] for run in self.live]
        self.rows.note(now_s, idle, live, plan, self.settings.objective)

    def result(self, wall_s: float) -> ReplayResult:
        """The replay's result, with `wall_s` as its run time in seconds. To be called after `run`."""
        events = len(self.born_s) - 1
        look_ahead_s = float(np.mean(self.look_aheads_s)) if self.look_aheads_s else 0.0
        book = ReplayAccounts(
            self.log, self.settings, self.runs, self.idle_steps, self.idle_node_s, events, look_ahead_s
        )
        return book.result(self.rows.steps(), wall_s)

    def learnt(self) -> LearntCurves:
        """What came of curves that had to be learnt. To be called after `run`."""
        end_s = self.log.duration_s
        explored, measured = map(sum, zip(*(run.book.explored for run in self.runs if run.book), strict=True))
        return LearntCurves(
            efficiency=self.result(0.0).efficiency,
            settled_after_h=self.comparison.settled_after_s(end_s) / 3600,
            as_known=self.comparison.share_as_known(end_s),
            explored=explored / measured if measured else math.nan,
        )


_NONE: Nodes = np.zeros(0, dtype=np.int32)
_NO_PLAN = Plan((), 0.0, 0.0, "none", 0.0, optimal=True)
"""The plan in force while there is no trainer."""


def _run(
    item: WorkItem, costs: RescaleCosts, bundles: HeldBundles, num_nodes: int, learning: Exploration | None
) -> TrainerRun:
    trainer = bundles.fitted(costs.charged(item.trainer))
    most = min(trainer.max_nodes, num_nodes)
    rates = tuple(trainer.curve.rate(trainer.fitting(n)) for n in range(most + 1))
    book = None if learning is None else RateBook(trainer.min_nodes, trainer.max_nodes, learning)
    return TrainerRun(item, trainer, rates, sizes=[(item.submit_s, 0)], book=book)
