"""What is known beyond the newest reading: our submissions, nodes that hooks say are taken, our cancellations."""

from __future__ import annotations

from oakum_service.documents.node import Node
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.schedulers.slurm.cancellation import Cancellations
from oakum_service.schedulers.slurm.completing import CompletingNodes
from oakum_service.schedulers.slurm.overlay import Overlay
from oakum_service.states import NodeState
from slurm_adapter import node

READ_AT = 1000.0
HOLE = Node("n1", NodeState.HOLE, "n1", announced_at=2000.0)
SEEN = Snapshot(READ_AT, (HOLE,), (OwnJob("70", "f0", "n2"),))
JOB = OwnJob("71", "f1", "n1")


def test_a_submission_is_shown_until_a_reading_shows_its_job() -> None:
    overlay = Overlay()
    overlay.note_submitted([JOB], at=1001.0)
    assert overlay.laid_over(SEEN).own_jobs == (*SEEN.own_jobs, JOB)
    overlay.note_reading(1000.5, shown={"f0"})
    assert overlay.job_ids() == {"f1": "71"}, "the reading began before the submission"
    overlay.note_reading(1000.8, shown={"f0", "f1"})
    assert overlay.laid_over(SEEN) == SEEN


def test_a_submission_that_a_later_reading_does_not_show_has_ended() -> None:
    overlay = Overlay()
    overlay.note_submitted([JOB], at=1001.0)
    overlay.note_reading(1002.0, shown={"f0"})
    assert overlay.job_ids() == {}


def test_a_node_that_a_hook_tells_of_is_no_hole_until_a_later_reading() -> None:
    overlay = Overlay()
    overlay.note_reading(READ_AT, shown={"f0"})
    overlay.note_taken(["n1"], job="500", at=1003.0)
    taken = Node("n1", NodeState.FOREGROUND, "n1", job="500", job_name="500")
    assert overlay.laid_over(SEEN).nodes == (taken,)
    overlay.note_reading(1004.0, shown={"f0"})
    assert overlay.laid_over(SEEN).nodes == (taken,), "hooks tell whole seconds: 1003 may mean 1003.9"
    overlay.note_reading(1004.1, shown={"f0"})
    assert overlay.laid_over(SEEN).nodes == (HOLE,)


def test_a_node_that_is_being_cleared_can_be_told_to_be_taken() -> None:
    overlay = Overlay()
    overlay.note_taken(["n1"], job="500", at=1003.0)
    cleared = Snapshot(READ_AT, (Node("n1", NodeState.UNAVAILABLE, "n1", clearing=True),), ())
    taken = Node("n1", NodeState.FOREGROUND, "n1", job="500", job_name="500")
    assert overlay.laid_over(cleared).nodes == (taken,)


def test_a_node_is_left_to_the_next_reading_once_its_job_has_ended() -> None:
    overlay = Overlay()
    overlay.note_taken(["n1"], job="500", at=1003.0)
    overlay.note_ended("501")
    overlay.note_reading(1003.0, shown=())
    assert overlay.laid_over(SEEN).nodes != (HOLE,), "another job has ended"
    overlay.note_ended("500")
    assert overlay.laid_over(SEEN).nodes != (HOLE,)
    overlay.note_reading(1003.0, shown=())
    assert overlay.laid_over(SEEN).nodes == (HOLE,)


def test_a_hook_older_than_the_reading_takes_no_node() -> None:
    overlay = Overlay()
    overlay.note_reading(READ_AT, shown=())
    overlay.note_taken(["n1"], job="500", at=READ_AT - 2.0)
    assert overlay.laid_over(SEEN).nodes == (HOLE,)


def test_a_job_is_cancelled_once_and_again_if_it_is_there_a_minute_later() -> None:
    cancellations = Cancellations()
    assert cancellations.request(["f1", "f2"], now=0.0 + READ_AT) == {"f1", "f2"}
    assert cancellations.are_due
    assert cancellations.take(READ_AT) == {"f1", "f2"}
    assert not cancellations.are_due
    assert cancellations.request(["f1"], now=READ_AT + 59.0) == set()
    assert cancellations.request(["f1"], now=READ_AT + 61.0) == {"f1"}


def test_a_job_that_no_reading_shows_any_more_may_be_cancelled_at_once() -> None:
    cancellations = Cancellations()
    cancellations.request(["f1", "f2"], now=READ_AT)
    cancellations.take(READ_AT)
    cancellations.note_reading(shown={"f2"})
    assert cancellations.request(["f1", "f2"], now=READ_AT + 1.0) == {"f1"}


def test_only_what_the_adapter_cancels_of_its_own_accord_is_withdrawn() -> None:
    cancellations = Cancellations()
    cancellations.request(["f1"], now=READ_AT)
    cancellations.withdraw(["f2"], now=READ_AT)
    assert cancellations.withdrawn == {"f2"}
    assert cancellations.take(READ_AT) == {"f1", "f2"}


def test_a_node_completes_until_a_reading_that_began_later_shows_it_clear() -> None:
    nodes = CompletingNodes()
    nodes.note_ended(["n1"], now_s=10.0)
    nodes.note_reading([node("n1")], began_s=9.0)
    assert nodes, "that reading began before the end was told"
    nodes.note_reading([node("n1", "ALLOCATED", "COMPLETING")], began_s=11.0)
    assert nodes
    nodes.note_reading([node("n1", "ALLOCATED", "COMPLETING")], began_s=311.0)
    assert not nodes, "a node that does not answer may never complete"
    nodes.note_ended(["n1"], now_s=400.0)
    nodes.note_reading([node("n1")], began_s=401.0)
    assert not nodes
