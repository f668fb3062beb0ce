"""Quotas in plans: who may have how many nodes, and when the week's node-hours are used up."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy.orm import Session

from cells import each
from oakum_service.config import QuotaSettings, Settings
from oakum_service.control.fragment_ends import end_fragment
from oakum_service.control.new_trainers import add_trainer
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.orders import quotas
from oakum_service.orders.quotas import NodeHours, caps, node_hours_used, set_quota, week_begin
from oakum_solver.problem import Curve, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import solve
from oakum_worker.spec import TrainerSpec

MONDAY = datetime(2027, 1, 11, tzinfo=UTC).timestamp()
HOUR = 3600.0


@each(
    ("at", "began"),
    [
        (datetime(2027, 1, 11, tzinfo=UTC), MONDAY),
        (datetime(2027, 1, 17, 23, 59, 59, tzinfo=UTC), MONDAY),
        (datetime(2027, 1, 18, tzinfo=UTC), MONDAY + 7 * 24 * HOUR),
        (datetime(1970, 1, 5, 12, tzinfo=UTC), datetime(1970, 1, 5, tzinfo=UTC).timestamp()),
    ],
)
def test_a_week_begins_on_monday(at: datetime, began: float) -> None:
    assert week_begin(at.timestamp()) == began


def launch(sessions: Sessions, user: str, begin: float, end: float | None, cause: str = "finished") -> None:
    """A fragment of a new trainer of the user."""
    with sessions.begin() as session:
        spec = TrainerSpec.model_validate(
            {"name": f"{user}-{begin:.0f}", "entrypoint": "a:b", "global_batch": 8, "epochs": 1}
        )
        trainer = add_trainer(session, spec, user)
        session.flush()
        fragment = Fragment(
            id=f"{user}-{begin:.0f}",
            trainer_id=trainer.id,
            node="n",
            state=FragmentState.LIVE,
            launched_at=begin,
            cause="" if end is None else cause,
        )
        session.add(fragment)
        if end is not None:
            session.flush()
            end_fragment(session, fragment, end)


def test_only_this_weeks_part_of_the_users_own_fragments_counts(sessions: Sessions) -> None:
    launch(sessions, "ada", MONDAY - 9 * HOUR, MONDAY - HOUR)
    launch(sessions, "ada", MONDAY - 2 * HOUR, MONDAY + 3 * HOUR)
    launch(sessions, "ada", MONDAY + HOUR, MONDAY + 2 * HOUR)
    launch(sessions, "ada", MONDAY - 5 * HOUR, None)
    launch(sessions, "bob", MONDAY, MONDAY + 7 * HOUR)
    launch(sessions, "bob", MONDAY + HOUR, MONDAY + 2 * HOUR, cause="never started")
    with sessions.begin() as session:
        assert node_hours_used(session, MONDAY + 10 * HOUR) == pytest.approx({"ada": 3 + 1 + 10, "bob": 7})


def test_a_user_has_no_nodes_once_the_week_is_used_up_and_again_on_monday(sessions: Sessions) -> None:
    launch(sessions, "ada", MONDAY, MONDAY + 5 * HOUR)
    settings = Settings(user_cap=9, quota=QuotaSettings(node_hours=5.0))
    known = NodeHours()
    with sessions.begin() as session:
        set_quota(session, "bob", {"nodes": 3}, "anna")
        now = MONDAY + 6 * HOUR
        assert caps(session, settings, ["ada", "bob", "eve"], known, now) == {"ada": 0, "bob": 3, "eve": 9}
        set_quota(session, "ada", {"node_hours": 5.1}, "anna")
        assert caps(session, settings, ["ada"], known, now) == {"ada": 9}
        set_quota(session, "ada", {}, "anna")
        assert caps(session, settings, ["ada"], known, now + 7 * 24 * HOUR) == {"ada": 9}


def test_a_sum_is_made_anew_after_a_minute_and_with_a_new_week(sessions: Sessions) -> None:
    known = NodeHours()
    with sessions.begin() as session:
        assert known.used(session, "ada", MONDAY + HOUR) == 0
    launch(sessions, "ada", MONDAY, MONDAY + HOUR)
    with sessions.begin() as session:
        assert known.used(session, "ada", MONDAY + HOUR + 59) == 0
        assert known.used(session, "ada", MONDAY + HOUR + 61) == pytest.approx(1)
        late = MONDAY + 7 * 24 * HOUR
        known.used(session, "ada", late - 1)
        assert known.used(session, "ada", late + 1) == 0


def test_without_limits_nobody_has_a_cap(sessions: Sessions) -> None:
    with sessions.begin() as session:
        assert caps(session, Settings(), ["ada"], NodeHours(), MONDAY) == {}


def test_a_plan_gives_a_used_up_quota_nothing_and_says_so() -> None:
    curve = Curve(((1, 100.0), (4, 400.0)))
    trainers = tuple(
        PlannedTrainer(id=user, name=user, curve=curve, min_nodes=1, max_nodes=4, user=user)
        for user in ("ada", "bob")
    )
    plan = solve(Problem(trainers, (NodeGroup(("n1", "n2", "n3")),), user_caps={"ada": 0}))
    ada, bob = plan.allocations
    assert (len(ada.nodes), len(bob.nodes)) == (0, 3)
    assert ada.reason.text == "ada's quota is used up, so ada's trainers may have no nodes"


def test_the_fragments_of_the_week_are_read_once_for_all_users(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = []

    def read(session: Session, now: float) -> dict[str, float]:
        readings.append(now)
        return node_hours_used(session, now)

    monkeypatch.setattr(quotas, "node_hours_used", read)
    settings, known = Settings(quota=QuotaSettings(node_hours=5.0)), NodeHours()
    with sessions.begin() as session:
        for number in range(20):
            assert known.used(session, f"user-{number}", MONDAY + HOUR) == 0
        caps(session, settings, [f"user-{number}" for number in range(20)], known, MONDAY + HOUR)
    assert len(readings) == 1
