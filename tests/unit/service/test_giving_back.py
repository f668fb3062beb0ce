"""Nodes that somebody wants although the scheduler lets our fragments go on there are given back."""

from __future__ import annotations

import pytest

from cells import each
from oakum_service.control.giving_back import release_wanted
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.schedulers.slurm.hole_policy import HolePolicy
from oakum_service.schedulers.slurm.reading.nodes import node_states
from oakum_service.schedulers.slurm.reading.state import SlurmReservation, SlurmState
from oakum_service.schedulers.slurm.snapshot import own_tasks, to_snapshot
from oakum_service.states import NodeState
from oakum_worker.protocol import Phase
from oakum_worker.spec_options import SlurmSpec
from scripted_trainer import ScriptedTrainer
from slurm_adapter import INSTANCE, node, own


@pytest.fixture
def trainer(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> ScriptedTrainer:
    """It trains on node `a`."""
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.say("a", Phase.READY)
    trainer.turn(after_s=1.0)
    trainer.switch("a", trainer.row.generation, 0)
    trainer.turn()
    assert trainer.row.members == ("a",)
    return trainer


def look(
    sessions: Sessions, *states: str, reservations: tuple[SlurmReservation, ...] = ()
) -> tuple[NodeState, bool]:
    """What the node is, and whether the fragment there is told to leave, once Slurm shows it in these states."""
    jobs = (own(71, "a", nodes="a"),)
    state = SlurmState(1000.0, "22.05.8", (node("a", *node_states(list(states))),), jobs, reservations)
    policy = HolePolicy("fill", reservations=("ours", "other"))
    snapshot = to_snapshot(state, INSTANCE, policy, own_tasks(jobs, INSTANCE))
    with sessions.begin() as session:
        fragment = session.get_one(Fragment, "a")
        fragment.released = False
        release_wanted(session, snapshot)
        return snapshot.nodes[0].state, fragment.released


@each(
    ("states", "is_released"),
    [
        (("ALLOCATED", "DRAIN"), True),
        (("ALLOCATED", "DRAINING"), True),
        (("MIXED", "DRAIN"), True),
        (("ALLOCATED", "MAINT"), True),
        (("ALLOCATED", "RESERVED"), True),
        (("ALLOCATED", "REBOOT_REQUESTED"), True),
        (("ALLOCATED", "FAIL"), True),
        (("ALLOCATED", "POWER_DOWN"), True),
        (("ALLOCATED",), False),
        (("ALLOCATED", "PLANNED"), False),
        (("ALLOCATED", "NOT_RESPONDING"), False),
        (("DOWN",), False),
    ],
)
def test_a_fragment_leaves_a_node_that_an_administrator_wants(
    trainer: ScriptedTrainer, sessions: Sessions, states: tuple[str, ...], is_released: bool
) -> None:
    found, released = look(sessions, *states)
    assert released == is_released
    assert found is NodeState.UNAVAILABLE or not is_released


@each(
    ("asked", "reservation", "is_released"),
    [("ours", "ours", False), (None, "ours", True), ("other", "ours", True), ("ours", "theirs", True)],
)
def test_a_node_of_a_reservation_is_kept_by_who_asks_for_it_alone(
    trainer: ScriptedTrainer, sessions: Sessions, asked: str | None, reservation: str, is_released: bool
) -> None:
    known = trainer.row.id
    with sessions.begin() as session:
        row = session.get_one(Trainer, known)
        row.spec = row.spec.model_copy(update={"slurm": SlurmSpec(reservation=asked)})
    now = SlurmReservation(reservation, "a", 0.0, 2000.0, ("MAINT",))
    assert look(sessions, "ALLOCATED", "MAINT", "RESERVED", reservations=(now,))[1] == is_released


def test_a_drained_node_is_left_with_a_checkpoint_and_told_once(
    trainer: ScriptedTrainer, sessions: Sessions
) -> None:
    before = trainer.row.revision
    look(sessions, "ALLOCATED", "DRAIN")
    trainer.turn(after_s=1.0)
    row = trainer.row
    assert (row.members, row.saver) == ((), "a")
    assert row.revision > before
    told = trainer.events("fragment.released")
    assert told == ["a: told to checkpoint and leave, as the node is DRAIN"]
    trainer.end_job("a")
    assert trainer.events("fragment.left") == ["a: released"]
