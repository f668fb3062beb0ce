"""A cluster that lives by the clock: what the dashboard's tests look at.

Foreground jobs are placed first come, first served on a few nodes, which leaves holes; two trainers take turns in
them. Everything follows from a seed and the time, so documents agree with each other and change as time goes on.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from oakum_service.api.node_columns import announced_columns
from oakum_service.api.schemas.cluster import ClusterView, NodeList, NodeView
from oakum_service.api.schemas.events import Event
from oakum_service.api.schemas.intervals import ForegroundInterval, FragmentInterval, Interval, Timeline
from oakum_service.api.schemas.node_history import (
    FoundNodes,
    FragmentColumns,
    Occupancy,
    OccupancyBand,
    StretchColumns,
    TimelineRows,
)
from oakum_service.api.schemas.plans import PlanList, PlanView
from oakum_service.api.schemas.series import Series, SeriesPoint
from oakum_service.api.schemas.trainers import DurationView, TimeSpent, TrainerView, WarmingFragment
from oakum_service.documents.announcement import Announcement
from oakum_service.node_history.bars import announced_bars
from oakum_service.standing import TrainerSituation, standing
from oakum_service.states import NodeState, TimeUse, TrainerState
from oakum_worker.spec import TrainerSpec

JOB_NAMES = ("cfd-wing", "md-protein", "qcd-lattice", "climate-lr", "genome-align", "dft-relax")
STARTUP_S = 4.0
SAMPLES_PER_S = 850.0
IDLE = "no node is idle"


@dataclass(frozen=True)
class Hole:
    """One node's idle interval, with the trainer that uses it."""

    node: str
    start: float
    end: float
    trainer: str

    @property
    def launched(self) -> float:
        return min(self.start + 2, self.end)

    @property
    def training(self) -> float:
        return self.launched + STARTUP_S


@dataclass
class SimulatedCluster:
    """The documents of a cluster at any moment around its start."""

    num_nodes: int = 12
    seed: int = 7
    past_s: float = 3700
    future_s: float = 1800
    clock: Callable[[], float] = time.time
    extra_trainers: list[TrainerView] = field(default_factory=list)
    mode: dict[str, object] = field(default_factory=dict)
    """Fields of the cluster's document that say why plans are not carried out."""
    published: list[Event] = field(default_factory=list)
    announced: list[Announcement] = field(default_factory=list)
    """What the scheduler expects: of the jobs to come it says nothing by itself."""
    outage: tuple[float, float] | None = None
    """Seconds back from now: from when until when no service listened."""
    followers: int = 0
    """Streams of events that are open."""

    def __post_init__(self) -> None:
        self.started = self.clock()
        self.nodes = [f"node-{number:03}" for number in range(1, self.num_nodes + 1)]
        self.jobs: list[ForegroundInterval] = []
        self.holes: list[Hole] = []
        self._place_jobs(random.Random(self.seed))

    def _place_jobs(self, chance: random.Random) -> None:
        at, end = self.started - self.past_s, self.started + self.future_s
        free_at = {node: at + chance.uniform(0, 20) for node in self.nodes}
        for number in itertools.count(4100):
            size = min(chance.choice((1, 1, 2, 2, 3, 4, 6)), len(self.nodes) - 1)
            chosen = sorted(self.nodes, key=lambda node: free_at[node])[:size]
            start = max(free_at[node] for node in chosen) + max(chance.uniform(-20, 45), 0)
            if start > end:
                return
            finish = start + chance.uniform(18, 90)
            for node in chosen:
                if start - free_at[node] > 0.5:
                    trainer = "charlm" if chance.random() < 0.4 else "digits"
                    self.holes.append(Hole(node, free_at[node], start, trainer))
                job = ForegroundInterval(
                    node=node, start_at=start, end_at=finish, job=str(number), name=JOB_NAMES[number % 6]
                )
                self.jobs.append(job)
                free_at[node] = finish

    def publish(self, kind: str, subject: str, message: str) -> None:
        """Add an event that the stream sends at once."""
        number = 1_000_000 + len(self.published)
        self.published.append(Event(id=number, at=self.clock(), kind=kind, subject=subject, message=message))

    def timeline(self, since_s: float) -> Timeline:
        now = self.clock()
        begin = now - since_s
        return Timeline(
            from_at=begin,
            to_at=now,
            nodes=self.nodes,
            foreground=[
                job.model_copy(update={"end_at": _until(job.end_at, now)})
                for job in self.jobs
                if job.start_at < now and (job.end_at or now) > begin
            ],
            holes=[
                Interval(node=hole.node, start_at=hole.start, end_at=_until(hole.end, now))
                for hole in self.holes
                if hole.start < now and hole.end > begin
            ],
            fragments=[
                FragmentInterval(
                    node=hole.node,
                    start_at=hole.launched,
                    end_at=_until(hole.end, now),
                    fragment=f"f-{hole.node}-{hole.start:.0f}",
                    trainer=hole.trainer,
                    training_at=hole.training if hole.training < min(now, hole.end) else None,
                    phase="training" if hole.training < now else "warming",
                )
                for hole in self.holes
                if hole.launched < now and hole.end > begin
            ],
        )

    def rows(self, from_at: float, to_at: float, nodes: list[str]) -> TimelineRows:
        """The timeline in columns, whatever changed, and what is announced before `to_at`."""
        now = self.clock()
        to_come = announced_bars(self.announced, nodes, now, to_at)
        to_at = min(to_at, now)
        whole = self.timeline(self.clock() - from_at)
        done = [
            *((i.node, i.start_at, i.end_at, "foreground", i.job, i.name) for i in whole.foreground),
            *((i.node, i.start_at, i.end_at, "hole", "", "") for i in whole.holes),
        ]
        shown = sorted(row for row in done if row[0] in nodes and row[1] <= to_at)
        fragments = [i for i in whole.fragments if i.node in nodes and i.start_at <= to_at]
        trainers = sorted({i.trainer for i in fragments})

        def after(at: float | None) -> float | None:
            return None if at is None else round(at - from_at, 2)

        return TimelineRows(
            from_at=from_at,
            to_at=to_at,
            kept_from=self.clock() - 7 * 86400.0,
            is_difference=False,
            nodes=nodes,
            trainers=trainers,
            stretches=StretchColumns(
                node=[nodes.index(row[0]) for row in shown],
                start_s=[round(row[1] - from_at, 2) for row in shown],
                end_s=[after(row[2]) for row in shown],
                state=[row[3] for row in shown],
                job=[row[4] for row in shown],
                name=[row[5] for row in shown],
                count=[1] * len(shown),
            ),
            fragments=FragmentColumns(
                node=[nodes.index(i.node) for i in fragments],
                start_s=[round(i.start_at - from_at, 2) for i in fragments],
                training_s=[after(i.training_at) for i in fragments],
                end_s=[after(i.end_at) for i in fragments],
                trainer=[trainers.index(i.trainer) for i in fragments],
                cause=["" if i.end_at is None else "preempted" for i in fragments],
                count=[1] * len(fragments),
            ),
            announced=announced_columns(to_come, {name: nodes.index(name) for name in nodes}, from_at),
            announced_from_at=min((each.start_at for each in self.announced), default=None),
        )

    def found(self, from_at: float, to_at: float, find: str) -> FoundNodes:
        """The nodes on which what has the text in its name ran, at any time in the window."""
        wanted = find.lower()
        jobs = [(i.node, i.start_at, i.end_at or to_at, f"{i.job} {i.name}") for i in self.jobs]
        trained = [(hole.node, hole.launched, hole.end, hole.trainer) for hole in self.holes]
        ran = {n for n, begin, end, name in jobs + trained if begin < to_at and end > from_at and wanted in name}
        nodes = [name for name in self.nodes if name in ran or wanted in name]
        return FoundNodes(from_at=from_at, to_at=to_at, nodes=nodes, is_complete=True)

    def occupancy(self, from_at: float, to_at: float, columns: int, bands: int) -> Occupancy:
        """Every band half busy and half training: its form alone is of use."""
        size = len(self.nodes) // bands
        parts = {"foreground": "h" * columns, "training": "c" * columns, "idle": "6" * columns}
        made = [OccupancyBand(first=self.nodes[i * size], num_nodes=size, **parts) for i in range(bands)]
        kept = self.clock() - 7 * 86400.0
        return Occupancy(from_at=from_at, to_at=to_at, kept_from=kept, columns=columns, bands=made)

    def node_list(self) -> NodeList:
        now = self.clock()
        return NodeList(
            snapshot=int(now - self.started), taken_at=now, nodes=[self._node(n, now) for n in self.nodes]
        )

    def _node(self, name: str, now: float) -> NodeView:
        for job in self.jobs:
            if job.node == name and job.start_at <= now < (job.end_at or now):
                return NodeView(name=name, state=NodeState.FOREGROUND, since=job.start_at, foreground_job=job.job)
        for hole in self.holes:
            if hole.node == name and hole.start <= now < hole.end:
                return NodeView(
                    name=name,
                    state=NodeState.HOLE,
                    since=hole.start,
                    trainer=hole.trainer if now > hole.launched else None,
                    fragment_phase="training" if now > hole.training else "warming",
                    hole_ends_at=hole.end,
                )
        return NodeView(name=name, state=NodeState.UNAVAILABLE, since=now - 20)

    def cluster(self) -> ClusterView:
        now = self.clock()
        past = [hole for hole in self.holes if hole.start < now]
        nodes = self.node_list().nodes
        return ClusterView(
            scheduler="local",
            num_nodes=len(nodes),
            num_foreground=sum(node.state == NodeState.FOREGROUND for node in nodes),
            num_holes=sum(node.state == NodeState.HOLE for node in nodes),
            num_training=sum(hole.training < now < hole.end for hole in past),
            idle_node_s=sum(min(hole.end, now) - hole.start for hole in past),
            used_node_s=sum(max(min(hole.end, now) - hole.training, 0) for hole in past),
            foreground_jobs_started=len({job.job for job in self.jobs if job.start_at < now}),
            foreground_delay_p50_s=0.18,
            foreground_delay_p99_s=0.74,
            foreground_delay_max_s=1.12,
            **self.mode,
        )

    def trainers(self) -> list[TrainerView]:
        return [self._digits(), self._charlm(), *self.extra_trainers]

    def _digits(self) -> TrainerView:
        return self._running(
            "digits",
            total_steps=60_000,
            metrics={"accuracy": 0.9731},
            why="one node more would add 610 samples, but the stall would cost 800 samples",
        )

    def _charlm(self) -> TrainerView:
        return self._running(
            "charlm",
            total_steps=42_000,
            metrics={"perplexity": 8.214},
            why="one node more would not make it faster",
        )

    def _running(self, name: str, total_steps: int, metrics: dict[str, float], why: str) -> TrainerView:
        now = self.clock()
        members = self._members(name, now)
        granted = [h.node for h in self.holes if h.trainer == name and h.launched < now < h.end]
        mine = [hole for hole in self.holes if hole.trainer == name and hole.training < now]
        samples = sum((min(h.end, now) - h.training) * SAMPLES_PER_S for h in mine if h.end > h.training)
        warming = [
            WarmingFragment(node=hole.node, launched_at=hole.launched)
            for hole in self.holes
            if hole.trainer == name and hole.launched < now < min(hole.training, hole.end)
        ]
        state = TrainerState.RUNNING if members else TrainerState.WAITING
        nodes_warming = tuple(fragment.node for fragment in warming)
        told = standing(
            TrainerSituation(state, tuple(members), tuple(granted), nodes_warming, why if granted else IDLE)
        )
        return TrainerView(
            id=f"t-{name}",
            name=name,
            state=state,
            status=told.status,
            spec=_spec(name),
            submitted_at=self.started - self.past_s + (name == "charlm"),
            started_at=self.started - self.past_s + 10,
            generation=len(mine) * 2,
            nodes=members,
            granted=granted,
            step=int(samples / 256),
            total_steps=total_steps,
            epoch=int(samples / 700_000),
            samples=int(samples),
            loss=_loss(now - self.started + self.past_s),
            samples_per_s=_rate(len(members)) if members else None,
            stepped_at=max((min(hole.end, now) for hole in mine), default=None),
            joining=[*told.joining],
            leaving=[*told.leaving],
            checkpoint_step=int(samples / 256) // 500 * 500,
            checkpoint_at=now - now % 30,
            total_samples=total_steps * 256,
            global_batch=256,
            learning_rate=0.0125,
            metrics=metrics,
            warming=warming,
            stalls={
                TimeUse.GROW: DurationView(median_s=0.31, last_s=0.28, count=7),
                TimeUse.SHRINK: DurationView(median_s=0.22, last_s=0.4, count=7),
                TimeUse.LOSS: DurationView(median_s=1.1, last_s=1.1, count=1),
            },
            start_up=DurationView(median_s=STARTUP_S, last_s=4.6, count=7),
            time_spent=self._time_spent(name, now),
            nodes_lost=sum(hole.end < now for hole in mine),
            nodes_gained=len(mine),
            rescales=len(mine) * 2 - 3,
            stall_s=0.31 * len(mine),
            last_stall_s=0.28,
            reason=told.sentence,
        )

    def _time_spent(self, name: str, now: float) -> TimeSpent:
        """Its holes laid over each other: where there is none, it waits."""
        since = now_trained = self.started - self.past_s + 10
        training_s = waiting_s = 0.0
        for hole in sorted(self.holes, key=lambda hole: hole.start):
            begin, end = max(hole.training, now_trained), min(hole.end, now)
            if hole.trainer == name and begin < end:
                waiting_s += begin - now_trained
                training_s += end - begin
                now_trained = end
        rescales = sum(hole.trainer == name and hole.training < now for hole in self.holes)
        stalls = {"grow_s": 0.31 * rescales, "shrink_s": 0.22 * rescales, "loss_s": 1.1}
        cold_start_s = 0.2 * waiting_s
        return TimeSpent(
            since_at=since,
            training_s=training_s - sum(stalls.values()),
            **stalls,
            cold_start_s=cold_start_s,
            waiting_s=waiting_s - cold_start_s + now - now_trained,
            redone_s=12.5 if name == "charlm" else 0.0,
            redone_steps=41 if name == "charlm" else 0,
            warm_up_node_s=STARTUP_S * rescales,
        )

    def _members(self, name: str, at: float) -> list[str]:
        return [h.node for h in self.holes if h.trainer == name and h.training < at < h.end]

    def series(self, name: str) -> Series:
        now = self.clock()
        points = []
        for back in range(200, -1, -1):
            at = math.floor(now) - 2 * back
            size = len(self._members(name, at))
            loss = _loss(at - self.started + self.past_s) + 0.02 * math.sin(at * 1.7) * math.sin(at * 0.31)
            point = SeriesPoint(
                at=at, step=200 - back, nodes=size, loss=loss if size else None, samples_per_s=_rate(size)
            )
            points.append(self._unless_unknown(point, now))
        return Series(points=points)

    def _unless_unknown(self, point: SeriesPoint, now: float) -> SeriesPoint:
        if self.outage is None or not now - self.outage[0] < point.at < now - self.outage[1]:
            return point
        return point.model_copy(update={"nodes": None, "loss": None, "samples_per_s": None})

    def plans(self) -> PlanList:
        now = self.clock()
        plan = PlanView(
            id=int(now) % 1000,
            parent=None,
            snapshot=3,
            made_at=now - 2,
            solver="milp/cbc",
            value=1.0,
            bound=1.0,
            gap=0.0,
            optimal=True,
            solve_s=0.0121,
            look_ahead_s=120,
            objective="throughput",
            allocations=[],
        )
        return PlanList(plans=[plan])

    def events(self) -> list[Event]:
        """What has happened in the last quarter of an hour, and what was published."""
        now = self.clock()
        happened: list[tuple[float, str, str, str]] = []
        for hole in self.holes:
            happened += [
                (hole.start, "node.hole", hole.node, "is idle; expected to last 40 s"),
                (hole.end, "node.foreground", hole.node, "is wanted by a foreground job"),
            ]
            if hole.training < hole.end:
                text = f"trains with {hole.node} after a stall of 0.28 s"
                happened.append((hole.training, "generation.formed", hole.trainer, text))
        recent = [entry for entry in happened if now - 900 < entry[0] <= now]
        events = [
            Event(id=int((at - self.started + self.past_s) * 100), at=at, kind=kind, subject=about, message=text)
            for at, kind, about, text in recent
        ]
        return sorted(events + self.published, key=lambda event: event.id)


def _until(end: float | None, now: float) -> float | None:
    return end if end is not None and end <= now else None


def _loss(age_s: float) -> float:
    return 0.11 + 2.2 * math.exp(-age_s / 1400)


def _rate(num_nodes: int) -> float:
    return SAMPLES_PER_S * math.pow(num_nodes, 0.92) if num_nodes else 0.0


def _spec(name: str) -> TrainerSpec:
    return TrainerSpec(
        name=name, entrypoint=f"tasks.{name}:task", global_batch=256, epochs=20, min_nodes=1, max_nodes=8
    )
