"""What agents see of their nodes is kept in bounded space and drawn by a few points."""

from __future__ import annotations

from sqlalchemy import func, insert, select

from api_under_test import SPEC
from cells import each
from oakum_service.control.node_uses import (
    Range,
    Sample,
    newest_of,
    points_of,
    sample_every_s,
    sample_row,
    samples_of,
    thin_out,
)
from oakum_service.db.engine import Sessions
from oakum_service.db.models.node_uses import NodeUseSample
from oakum_service.db.models.trainers import Trainer
from oakum_worker.protocol import NodeUse

NOW = 1_800_000_000.0


def seen(
    at: float, cpu: float | None = 0.5, *, node: str = "n1", memory: float | None = None, after_gap: bool = False
) -> Sample:
    """A sample of a node, `at` seconds after `NOW`."""
    nothing = dict.fromkeys(Sample._fields)
    given = {"node": node, "at": NOW + at, "after_gap": after_gap, "reports": 1, "cpu": cpu, "memory": memory}
    return Sample(**(nothing | given))  # type: ignore[arg-type]


def keep(sessions: Sessions, *samples: Sample) -> None:
    with sessions.begin() as session:
        session.add(Trainer(id="t", name="digits", spec=SPEC, state="running", submitted_at=0.0))
        session.flush()
        session.execute(insert(NodeUseSample), [{"trainer_id": "t", **sample._asdict()} for sample in samples])


def kept(sessions: Sessions) -> list[Sample]:
    with sessions.begin() as session:
        thin_out(session, "t")
        session.flush()
        return samples_of(session, "t", 0.0, 1e11)


@each(
    ("use", "shares"),
    [
        (NodeUse(cores=4, busy_cores=1.0), (0.25, None, None)),
        (NodeUse(cores=4, busy_cores=4.1), (1.0, None, None)),
        (NodeUse(busy_cores=1.0, used_bytes=5), (None, None, None)),
        (NodeUse(memory_bytes=0, used_bytes=5), (None, None, None)),
        (NodeUse(memory_bytes=100, used_bytes=50, gpu_use=0.5), (None, 0.5, 0.5)),
    ],
    ids=["cores", "more than all", "of what is not told", "of nothing", "memory and GPUs"],
)
def test_what_is_kept_are_shares_of_what_there_is(
    use: NodeUse, shares: tuple[float | None, float | None, float | None]
) -> None:
    row = sample_row("t", "n1", NOW, use, after_gap=False)
    assert (row.cpu, row.memory, row.gpu) == shares


def test_the_more_agents_there_are_the_rarer_is_each_of_them_kept() -> None:
    assert [sample_every_s(number) for number in (1, 200, 4000)] == [10.0, 10.0, 200.0]


def test_a_point_tells_mean_least_and_greatest_of_all_nodes() -> None:
    samples = [seen(0, 0.2), seen(1, 0.4, node="n2"), seen(2, None, node="n3"), seen(30, 0.9)]
    first, second = points_of(samples, 300)
    assert (first.at, second.at) == (NOW + 2, NOW + 30)
    assert first.shares == {"cpu": Range((0.2 + 0.4) / 2, 0.2, 0.4)}
    assert second.shares["cpu"] == Range(0.9, 0.9, 0.9)


def test_points_fit_the_limit_and_span_the_whole_time() -> None:
    points = points_of([seen(10.0 * number) for number in range(5000)], 100)
    assert 50 <= len(points) <= 101
    assert points[-1].at == NOW + 49_990


def test_a_line_breaks_where_the_trainer_had_left_and_not_where_another_node_joins() -> None:
    samples = [seen(0, after_gap=True), seen(10), seen(20, node="n2", after_gap=True), seen(400, after_gap=True)]
    assert [point.after_gap for point in points_of(samples, 300)] == [False, False, False, True]


def test_no_samples_make_no_points() -> None:
    assert points_of([], 10) == []


def test_nodes_are_told_by_when_they_were_last_heard() -> None:
    assert [*newest_of([seen(0), seen(1, node="n2"), seen(2)])] == ["n1", "n2"]


def test_old_samples_of_a_node_are_put_together_and_the_greatest_of_memory_is_kept(sessions: Sessions) -> None:
    many = [seen(10.0 * number, cpu=0.5, memory=0.9 if number == 77 else 0.1) for number in range(2000)]
    keep(sessions, *many)
    left = kept(sessions)
    assert 100 <= len(left) <= 300
    assert sum(sample.reports for sample in left) == 2000
    assert max(sample.memory or 0.0 for sample in left) == 0.9
    assert {sample.cpu for sample in left} == {0.5}
    assert left[-1].at == many[-1].at
    assert kept(sessions) == left


def test_what_a_trainer_keeps_is_bounded_whatever_the_number_of_its_nodes(sessions: Sessions) -> None:
    keep(
        sessions,
        *(
            seen(10.0 * number, node=f"n{node}", after_gap=number % 2 == 0)
            for node in range(100)
            for number in range(61)
        ),
    )
    left = kept(sessions)
    assert len({sample.node for sample in left}) == 100
    assert len(left) <= 4000


def test_few_samples_stay_as_they_are(sessions: Sessions) -> None:
    keep(sessions, *(seen(10.0 * number) for number in range(100)))
    with sessions.begin() as session:
        thin_out(session, "t")
        assert session.scalar(select(func.count()).select_from(NodeUseSample)) == 100
