"""What a running service has seen of idle nodes and trainers, as a log and a workload to replay."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.intervals import IdleTimeView, Interval
from oakum_service.api.schemas.series import SeriesPoint
from oakum_service.api.schemas.trainers import TrainerView
from oakum_service.documents.slots import is_part, node_of, number_of
from oakum_service.states import LIVE_STATES
from oakum_solver.curves import Sample, fit_curve
from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.parts import Parts
from oakum_solver.objectives import Objective
from oakum_solver.problem import Curve, PlannedTrainer
from oakum_solver.replay.accounts import sample_worth
from oakum_solver.replay.workload import WorkItem, Workload

_POINTS = 5000


@dataclass(frozen=True)
class OwnTrainer:
    """What one trainer did within the history."""

    item: WorkItem
    samples: float
    """Samples that it trained."""


@dataclass(frozen=True)
class OwnHistory:
    """The history from `began_at` on, in Unix seconds: holes, and what the service made of them."""

    began_at: float
    log: HoleLog
    trainers: tuple[OwnTrainer, ...]
    idle_time: IdleTimeView
    """What became of the holes' node-time."""

    @property
    def workload(self) -> Workload:
        """The trainers to replay."""
        return Workload(tuple(trainer.item for trainer in self.trainers))

    def achieved(self, objective: Objective) -> float:
        """The worth of all samples that the service has trained, as `ReplayResult.achieved` of a replay."""
        return sum(each.samples * sample_worth(objective, each.item.trainer) for each in self.trainers)

    @property
    def node_time(self) -> dict[str, float]:
        """What became of the idle node-time, in shares of it: by the words of `replay.export.loss_hours`, and
        `productive` and `late`."""
        went, idle_s = self.idle_time, self.idle_time.idle_node_s
        parts = {
            "productive": went.trained_node_s,
            "startup": went.start_up_node_s,
            "stalls": went.stalled_node_s,
            "late": went.late_node_s,
            "unallocated": went.unwanted_node_s,
        }
        return {cause: node_s / idle_s if idle_s else 0.0 for cause, node_s in parts.items()}


def read_own_history(client: OakumClient, since_s: float) -> OwnHistory:
    """The history of the last `since_s` seconds. Raises a `ClientError`, and `LogError` where the service has seen
    no idle node or trained no trainer in that time."""
    now = time.time()
    seen = client.holes(since_s)
    holes, went = seen.holes, seen.idle_time
    if not holes:
        raise LogError(f"the service has seen no idle node in the last {since_s / 3600:.3g} h")
    if went is None:
        raise LogError("this service is too old to tell what became of idle node-time: update it")
    began_at = max(now - since_s, min(hole.start_at for hole in holes))
    views = [view for view in client.trainers().trainers if _is_within(view, began_at)]
    if any(view.is_private for view in views):
        raise LogError("others' trainers are private: replay the service's history with an administrator's token")
    trained = [view for view in views if view.measured_rates or view.spec.curve]
    times = Counter(view.name for view in trained)
    trainers = tuple(
        _trainer(view, view.name if times[view.name] == 1 else view.id, _points(client, view), began_at)
        for view in trained
    )
    if not trainers:
        raise LogError(f"no trainer has trained in the last {since_s / 3600:.3g} h")
    notes = ["read from what the service has seen: a time in which it did not run counts as it was before"]
    if len(trained) < len(views):
        notes.append(f"trainers whose speed was never measured, left out: {len(views) - len(trained):,}")
    names = {node.name for node in client.nodes().nodes}
    return OwnHistory(began_at, _log(holes, names, began_at, now, notes), trainers, went)


def _is_within(view: TrainerView, began_at: float) -> bool:
    return (view.ended_at is None or view.ended_at > began_at) and (view.samples > 0 or view.state in LIVE_STATES)


def _log(
    holes: Sequence[Interval], names: Iterable[str], began_at: float, now: float, notes: list[str]
) -> HoleLog:
    nodes = tuple(sorted({*names, *(hole.node for hole in holes)}))
    index = {name: number for number, name in enumerate(nodes)}
    spans = sorted(
        (max(hole.start_at, began_at) - began_at, (hole.end_at or now) - began_at, index[hole.node])
        for hole in holes
        if (hole.end_at or now) > max(hole.start_at, began_at)
    )
    return HoleLog(
        name="own",
        nodes=nodes,
        node=np.array([node for _, _, node in spans], dtype=np.int32),
        start_s=np.array([start_s for start_s, _, _ in spans]),
        end_s=np.array([end_s for _, end_s, _ in spans]),
        duration_s=now - began_at,
        notes=tuple(notes),
        parts=_parts(nodes),
    )


def _parts(slots: Sequence[str]) -> Parts | None:
    """How the slots stand together; None where all are nodes. A node has as many as have ever had a number."""
    if not any(is_part(slot) for slot in slots):
        return None
    numbers = [*map(number_of, slots)]
    sizes: dict[str, int] = {}
    for slot, number in zip(slots, numbers, strict=True):
        sizes[node_of(slot)] = max(sizes.get(node_of(slot), 0), number + 1)
    hosts = {node: position for position, node in enumerate(sizes)}
    return Parts(
        host=np.array([hosts[node_of(slot)] for slot in slots], dtype=np.int32),
        names=tuple(hosts),
        slots=np.array(list(sizes.values()), dtype=np.int32),
        slot=np.array(numbers, dtype=np.int32),
    )


def _points(client: OakumClient, view: TrainerView) -> list[SeriesPoint]:
    return client.series(view.id, _POINTS, from_at=view.submitted_at).points


def _trainer(view: TrainerView, label: str, points: Sequence[SeriesPoint], began_at: float) -> OwnTrainer:
    before = max((point.step for point in points if point.at <= began_at), default=0)
    samples_before = view.samples * before / view.step if view.step else 0.0
    item = WorkItem(_planned(view, label), max(0.0, view.submitted_at - began_at), _wanted(view, samples_before))
    return OwnTrainer(item, view.samples - samples_before)


def _wanted(view: TrainerView, samples_before: float) -> float | None:
    """Samples that the trainer was to train within the history; of one that was ended early, those that it did."""
    total = view.total_samples if view.state in LIVE_STATES else view.samples
    return None if total is None else max(1.0, total - samples_before)


def _planned(view: TrainerView, label: str) -> PlannedTrainer:
    spec = view.spec
    samples = [Sample(rate.nodes, rate.samples_per_s, rate.seconds) for rate in view.measured_rates]
    prior = Curve(spec.curve) if spec.curve else None
    return PlannedTrainer(
        id=label,
        curve=fit_curve(samples, prior, spec.max_nodes).curve,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        sizes=spec.listed_sizes,
        weight=spec.weight,
        priority=spec.priority,
        user=view.user,
        bundle="host" if view.slots_per_fragment == "node" else view.slots_per_fragment,
    )
