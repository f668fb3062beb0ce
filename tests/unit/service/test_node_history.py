"""What nodes did, in the forms that pictures are made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy.orm import Session

from cells import each
from empty_databases import new_sessions
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.node_history.bars import (
    FragmentBar,
    Stretch,
    Window,
    merged_fragments,
    merged_stretches,
)
from oakum_service.node_history.kept_hours import KeptHours
from oakum_service.node_history.occupancy import USES, band_shares, round_window
from oakum_service.node_history.stored_hours import hours_to_store
from oakum_service.states import NodeState
from oakum_worker.spec import TrainerSpec

NOW = 1_000_000_000.0
HOUR_S = 3600.0
NODES = [f"n{number:02d}" for number in range(7)]


@pytest.fixture(scope="module")
def cluster(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """Seven nodes with two days of random stretches, and fragments in the holes."""
    chance = random.Random(7)
    with new_sessions(empty_database, tmp_path_factory.mktemp("cluster")) as sessions:
        fill(sessions(), chance)
        yield sessions


@pytest.fixture
def filled(cluster: Sessions) -> Iterator[Session]:
    """The cluster; what a test changes is undone."""
    with cluster() as session:
        yield session
        session.rollback()


def fill(session: Session, chance: random.Random) -> None:
    spec = TrainerSpec(name="t", entrypoint="tasks:t", global_batch=1, epochs=1)
    session.add(Trainer(id="t", name="t", spec=spec, state="running", submitted_at=0.0, user_name="u"))
    session.flush()
    for node in [*NODES, "gone"]:
        at, is_hole = NOW - 48 * HOUR_S, chance.random() < 0.5
        while at < NOW:
            end = at + chance.expovariate(1 / 3000.0)
            ended = None if end >= NOW else end
            state = NodeState.HOLE if is_hole else chance.choice([NodeState.FOREGROUND, NodeState.UNAVAILABLE])
            session.add(NodeInterval(node=node, state=state, start_at=at, end_at=ended))
            if is_hole:
                fragment = Fragment(
                    id=f"{node}-{at}", trainer_id="t", node=node, state="ended", launched_at=at + 1.0
                )
                fragment.training_at = None if chance.random() < 0.2 else at + 30.0
                fragment.ended_at = ended
                session.add(fragment)
            at, is_hole = end, not is_hole
    session.commit()
    session.close()


def expected(session: Session) -> Callable[[str, list[str], float, float], float]:
    """A function of a use, nodes, and a beginning and an end, that adds up plainly which share of the nodes' time
    the use took."""
    stretches = [(i.state, i.node, i.start_at, i.end_at) for i in session.query(NodeInterval)]
    trained = [("training", f.node, f.training_at, f.ended_at) for f in session.query(Fragment)]
    rows = [*stretches, *((use, node, start, end) for use, node, start, end in trained if start is not None)]

    def share(use: str, nodes: list[str], begin: float, end: float) -> float:
        total = 0.0
        for kind, node, start, stop in rows:
            if kind == use and node in nodes:
                total += max(0.0, min(stop or NOW, end) - max(start, begin))
        return total / (len(nodes) * (end - begin))

    return share


@each("span_s", [120.0, 2.5 * HOUR_S])
@each("num_bands", [1, 3, 7, 50])
def test_shares_of_a_short_window_equal_those_added_up_plainly(
    filled: Session, span_s: float, num_bands: int
) -> None:
    window = Window(NOW - 20 * HOUR_S - span_s, NOW - 20 * HOUR_S)
    shown, shares = KeptHours().occupancy(filled, NODES, window, (num_bands, 5), Window(0.0, NOW))
    assert shown == window
    assert shares.shape == (len(USES), min(num_bands, len(NODES)), 5)
    share = expected(filled)
    for use, name in enumerate(USES):
        for column in range(5):
            begin = window.from_at + column * span_s / 5
            of_node = [share(name, [node], begin, begin + span_s / 5) for node in NODES]
            if num_bands >= len(NODES):
                assert shares[use, :, column] == pytest.approx(of_node, abs=1e-5)
            elif num_bands == 1:
                assert shares[use, 0, column] == pytest.approx(np.mean(of_node), abs=1e-5)
            else:
                bands = [np.mean(of_node[:2]), np.mean(of_node[2:5]), np.mean(of_node[5:])]
                assert shares[use, :, column] == pytest.approx(bands, abs=1e-5)


def test_shares_of_days_are_kept_by_hours_and_equal_those_added_up_plainly(filled: Session) -> None:
    hours = KeptHours()
    wanted = Window(NOW - 47.3 * HOUR_S, NOW - 100.0)
    first = hours.occupancy(filled, NODES, wanted, (7, 300), Window(0.0, NOW))
    window, shares = first
    assert window.from_at <= wanted.from_at
    assert window.to_at >= wanted.to_at
    assert shares.shape[2] <= 300
    width_s = (window.to_at - window.from_at) / shares.shape[2]
    share = expected(filled)
    for use, name in enumerate(USES):
        for column in range(0, shares.shape[2] - 1, 17):
            begin = window.from_at + column * width_s
            of_node = [share(name, [node], begin, begin + width_s) for node in NODES]
            assert shares[use, :, column] == pytest.approx(of_node, abs=0.005)
    filled.query(NodeInterval).filter(NodeInterval.end_at < NOW - 3 * HOUR_S).delete()
    again = hours.occupancy(filled, NODES, wanted, (7, 300), Window(0.0, NOW))[1]
    settled = shares.shape[2] - int(4 * HOUR_S / width_s)
    assert np.array_equal(again[:, :, :settled], shares[:, :, :settled])


def test_hours_that_are_over_are_stored_once_and_stand_for_their_stretches(filled: Session) -> None:
    wanted, known = Window(NOW - 40 * HOUR_S, NOW - 5 * HOUR_S), Window(NOW - 48 * HOUR_S, NOW)
    before = KeptHours().occupancy(filled, NODES, wanted, (7, 300), known)[1]
    steps = []
    while rows := hours_to_store(filled, [*NODES[3:], "gone", *NODES[:3]], known.from_at, NOW):
        steps.append([row.hour for row in rows])
        filled.add_all(rows)
        filled.flush()
    assert [len(step) for step in steps] == [24, 47 - 24]
    assert min(steps[0]) > max(steps[1]), "the newest first"
    for table in (NodeInterval, Fragment):
        filled.query(table).delete()
    after = KeptHours().occupancy(filled, NODES, wanted, (7, 300), known)[1]
    assert np.allclose(after, before, atol=0.005)
    # Nodes that the cluster did not have then are not those that stand in their place.
    more = KeptHours().occupancy(filled, ["new", *NODES], wanted, (8, 300), known)[1]
    assert not more[:, 0].any()
    assert np.array_equal(more[:, 1:], after)


@pytest.mark.parametrize("most_bytes", [1, 2**30])
def test_kept_hours_are_dropped_with_other_nodes_and_when_memory_is_short(
    filled: Session, most_bytes: int
) -> None:
    hours = KeptHours(most_bytes)
    window = Window(NOW - 24 * HOUR_S, NOW)
    before = hours.occupancy(filled, NODES, window, (7, 288), Window(0.0, NOW))[1]
    fewer = hours.occupancy(filled, NODES[:3], window, (3, 288), Window(0.0, NOW))[1]
    assert np.allclose(fewer, before[:, :3])
    filled.query(NodeInterval).delete()
    again = hours.occupancy(filled, NODES[:3], window, (3, 288), Window(0.0, NOW))[1]
    assert again[:2].any() == (most_bytes > 1)


def test_nothing_is_known_before_stretches_are_kept(filled: Session) -> None:
    window = Window(NOW - 40 * HOUR_S, NOW - 30 * HOUR_S)
    known = Window(NOW - 34 * HOUR_S, NOW)
    shown, shares = KeptHours().occupancy(filled, NODES, window, (1, 1000), known)
    width_s = (shown.to_at - shown.from_at) / shares.shape[2]
    last = int((known.from_at - HOUR_S - shown.from_at) / width_s)
    assert not shares[:, :, :last].any()
    assert shares[:, :, -10:].any()


def test_a_band_holds_whole_nodes_and_a_node_of_the_cluster_that_is_gone_counts_nothing(filled: Session) -> None:
    window = Window(NOW - HOUR_S, NOW)
    assert band_shares(filled, NODES, window, (1, 1), NOW).sum(axis=0)[0, 0] <= 2.0


@each(("days", "most"), [(0.2, 300), (1, 600), (7, 600), (30, 600), (31, 10)])
def test_a_rounded_window_holds_the_wanted_one(days: float, most: int) -> None:
    wanted = Window(NOW - days * 86400.0 - 17.0, NOW)
    window, columns = round_window(wanted, most, 300.0)
    width_s = (window.to_at - window.from_at) / columns
    assert window.from_at <= wanted.from_at < window.from_at + width_s
    assert window.to_at - width_s < wanted.to_at <= window.to_at
    assert width_s % 300.0 == 0.0
    assert columns <= most or width_s == 288 * 300.0


def stretch(start: float, end: float | None, state: str = "hole", node: str = "n") -> Stretch:
    return Stretch(node, start, end, state, "" if state == "hole" else "7")


def test_short_stretches_are_merged_until_they_are_as_long_as_a_pixel() -> None:
    rows = [
        stretch(0.0, 100.0, "foreground"),
        stretch(100.0, 104.0),
        stretch(104.0, 105.0, "foreground"),
        stretch(105.0, 111.0),
        stretch(111.0, 112.0, "foreground"),
        stretch(112.0, None),
    ]
    assert list(merged_stretches(rows, 0.0)) == rows
    merged = list(merged_stretches(rows, 10.0))
    assert merged == [
        rows[0],
        Stretch("n", 100.0, 111.0, "hole", count=3),
        rows[4],
        rows[5],
    ]


def test_stretches_of_other_nodes_and_after_gaps_are_not_merged() -> None:
    rows = [stretch(0.0, 1.0), stretch(1.0, 2.0, node="m"), stretch(3.0, 4.0, node="m")]
    assert list(merged_stretches(rows, 10.0)) == rows


def test_merging_keeps_the_time_that_it_covers() -> None:
    chance = random.Random(3)
    rows, at = [], 0.0
    for _ in range(500):
        end = at + chance.expovariate(0.1)
        rows.append(stretch(at, end, chance.choice(["hole", "foreground"])))
        at = end
    merged = list(merged_stretches(rows, 20.0))
    assert len(merged) < len(rows) / 2
    assert [row.start_at for row in merged[1:]] == [row.end_at for row in merged[:-1]]
    assert sum(row.count for row in merged) == len(rows)


def test_one_trainers_short_fragments_are_merged() -> None:
    rows = [
        FragmentBar("n", 0.0, 1.0, 3.0, "a"),
        FragmentBar("n", 4.0, None, 5.0, "a"),
        FragmentBar("n", 6.0, 7.0, 8.0, "b"),
        FragmentBar("n", 20.0, 21.0, None, "b"),
    ]
    assert list(merged_fragments(rows, 0.0)) == rows
    assert list(merged_fragments(rows, 10.0)) == [FragmentBar("n", 0.0, 1.0, 5.0, "a", count=2), *rows[2:]]
