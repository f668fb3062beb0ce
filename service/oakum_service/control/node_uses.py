"""How much of trainers' nodes was in use: samples from agents' reports, kept in bounded space, and charts' points.

An agent looks every few seconds; of that a trainer keeps as many samples as a chart can show, whatever the number
of its nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from oakum_service.control.thinning import crowded, groups
from oakum_service.db.models.node_uses import NodeUseSample
from oakum_worker.protocol import NodeUse

_EVERY_S = 10.0
_SAMPLES_PER_S = 20.0
"""Of all fragments together that are written."""
_KEPT, _LEAST_KEPT, _MOST_KEPT = 4_000, 8, 300
"""Samples of a trainer that its nodes share, and the fewest and the most of a node. Those of a node are put
together where there are half as many again."""
_BATCH = 1000
_GAP_S = 30.0
"""Seconds between two points from which on no line is drawn, where a fragment begins after them."""

SHARES = ("cpu", "own_cpu", "memory", "own_memory", "gpu", "gpu_memory")
SIZES = ("cores", "memory_bytes", "gpus", "gpu_memory_bytes")
_GREATEST = ("memory", "own_memory", "gpu_memory")
"""Of these the greatest counts, where samples are put together: it is what has to fit."""


class Sample(NamedTuple):
    """What a `NodeUseSample` tells."""

    node: str
    at: float
    after_gap: bool
    reports: int
    cpu: float | None
    own_cpu: float | None
    memory: float | None
    own_memory: float | None
    gpu: float | None
    gpu_memory: float | None
    cores: float | None
    memory_bytes: int | None
    gpus: int | None
    gpu_memory_bytes: int | None

    def stays_apart(self, before: Sample) -> bool:
        """Whether a chart has to show that a fragment begins here."""
        return self.after_gap


_SAMPLES = select(*(getattr(NodeUseSample, name) for name in Sample._fields))


class Range(NamedTuple):
    """The mean of several samples, with the least and the greatest."""

    mean: float
    least: float
    greatest: float


class UsePoint(NamedTuple):
    """What the nodes did in one stretch of a chart."""

    at: float
    shares: dict[str, Range]
    """By their names in `SHARES`, those that are known."""
    after_gap: bool
    """Whether the trainer had none of the nodes for a while before."""


def sample_every_s(num_agents: int) -> float:
    """Seconds between two samples of a fragment that are kept: 10 s for up to 200 agents, longer the more there
    are."""
    return max(_EVERY_S, num_agents / _SAMPLES_PER_S)


def sample_row(trainer_id: str, node: str, at: float, use: NodeUse, *, after_gap: bool) -> NodeUseSample:
    """The row for what an agent has seen of its node at `at`, in Unix seconds."""
    return NodeUseSample(
        trainer_id=trainer_id,
        node=node,
        at=at,
        after_gap=after_gap,
        reports=1,
        cpu=_share(use.busy_cores, use.cores),
        own_cpu=_share(use.own_cores, use.cores),
        memory=_share(use.used_bytes, use.memory_bytes),
        own_memory=_share(use.own_bytes, use.memory_bytes),
        gpu=use.gpu_use,
        gpu_memory=_share(use.gpu_used_bytes, use.gpu_memory_bytes),
        **{name: getattr(use, name) for name in SIZES},
    )


def _share(part: float | None, whole: float | None) -> float | None:
    """The share from 0 to 1; what is more than the whole was measured a moment later."""
    return None if part is None or not whole else min(1.0, part / whole)


def samples_of(session: Session, trainer_id: str, begin: float, end: float) -> list[Sample]:
    """The trainer's samples from `begin` to `end` (Unix seconds), in order of time."""
    query = _SAMPLES.where(NodeUseSample.trainer_id == trainer_id, NodeUseSample.at.between(begin, end))
    return [Sample(*row) for row in session.execute(query.order_by(NodeUseSample.at, NodeUseSample.node))]


def points_of(samples: Sequence[Sample], most: int) -> list[UsePoint]:
    """At most about `most` points of the samples, which are in order of time: of one node or of many."""
    if not samples:
        return []
    span_s = max(samples[-1].at - samples[0].at, _EVERY_S)
    width_s = max(_EVERY_S, 2.0 ** math.ceil(math.log2(span_s / most)))
    points: list[UsePoint] = []
    for some in _bins(samples, width_s):
        at = some[-1].at
        is_begun = any(sample.after_gap for sample in some)
        is_far = bool(points) and some[0].at - points[-1].at > max(_GAP_S, 2 * width_s)
        points.append(UsePoint(at, dict(_ranges(some)), is_begun and is_far))
    return points


def _bins(samples: Sequence[Sample], width_s: float) -> Iterator[Sequence[Sample]]:
    begin = 0
    for number in range(1, len(samples)):
        if samples[number].at // width_s != samples[begin].at // width_s:
            yield samples[begin:number]
            begin = number
    yield samples[begin:]


def _ranges(samples: Sequence[Sample]) -> Iterator[tuple[str, Range]]:
    for name in SHARES:
        known = [(share, sample.reports) for sample in samples if (share := getattr(sample, name)) is not None]
        if known:
            mean = sum(share * count for share, count in known) / sum(count for _, count in known)
            yield name, Range(mean, min(known)[0], max(known)[0])


def thin_out(session: Session, trainer_id: str) -> None:
    """Put old samples of the trainer together with their neighbours where it has too many."""
    mine = NodeUseSample.trainer_id == trainer_id
    counted = select(NodeUseSample.node, func.count()).where(mine).group_by(NodeUseSample.node)
    counts = dict(session.execute(counted).all())
    kept = max(_LEAST_KEPT, min(_MOST_KEPT, _KEPT // max(1, len(counts))))
    for node, count in counts.items():
        if count > 1.5 * kept:
            _thin_out_node(session, trainer_id, node, kept)


def _thin_out_node(session: Session, trainer_id: str, node: str, most: int) -> None:
    query = _SAMPLES.add_columns(NodeUseSample.id).where(
        NodeUseSample.trainer_id == trainer_id, NodeUseSample.node == node
    )
    rows = session.execute(query.order_by(NodeUseSample.at, NodeUseSample.id)).all()
    samples, ids = [Sample(*row[:-1]) for row in rows], [row.id for row in rows]
    merged = groups(samples, most)
    if len(merged) > most:
        merged = crowded(len(samples), most)
    several = [group for group in merged if len(group) > 1]
    doomed = [ids[number] for group in several for number in group[:-1]]
    for begin in range(0, len(doomed), _BATCH):
        session.execute(delete(NodeUseSample).where(NodeUseSample.id.in_(doomed[begin : begin + _BATCH])))
    changed = [
        {"id": ids[group[-1]], **_together(samples[group.start : group.stop])._asdict()} for group in several
    ]
    if changed:
        session.execute(update(NodeUseSample), changed)


def _together(samples: Sequence[Sample]) -> Sample:
    """One sample for these of a node: the last of them, with what holds for all."""
    ranges = dict(_ranges(samples))
    shares = {name: each.greatest if name in _GREATEST else each.mean for name, each in ranges.items()}
    last = samples[-1]._replace(after_gap=samples[0].after_gap, reports=sum(one.reports for one in samples))
    return Sample(**last._asdict() | shares)


def newest_of(samples: Iterable[Sample]) -> dict[str, Sample]:
    """Node -> the last of its samples, which are in order of time; the node heard last comes first."""
    newest: dict[str, Sample] = {}
    for sample in samples:
        newest.pop(sample.node, None)
        newest[sample.node] = sample
    return dict(reversed(newest.items()))
