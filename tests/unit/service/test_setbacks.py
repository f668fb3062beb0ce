"""Launches that come to nothing: how rarely they are repeated, on which nodes, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from cells import each
from oakum_client.cli.cluster import _used_by
from oakum_service.api.nodes import _present
from oakum_service.api.schemas.trainers import TrainerView
from oakum_service.api.views import trainer_view
from oakum_service.config import Settings
from oakum_service.control import launch_records, observe, setbacks
from oakum_service.control.execute import Executor
from oakum_service.control.new_trainers import add_trainer
from oakum_service.control.observe import Observation, end_fragments
from oakum_service.control.planner import Planner
from oakum_service.control.setbacks import Surroundings
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Fragment, live_fragments
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.documents.setback import Setback, SetbackKind
from oakum_service.errors import SubmissionRefused
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.instruments import REFUSALS
from oakum_service.schedulers.port import OwnJob, Scheduler, Snapshot
from oakum_service.standing import Status
from oakum_service.states import NodeState, TrainerState
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.protocol import Phase
from oakum_worker.spec import TrainerSpec
from scripted_trainer import ScriptedTrainer
from slurm_adapter import FAKE, Site, make_site, node

SPEC = TrainerSpec(name="digits", entrypoint="a:b", global_batch=8, epochs=1, max_nodes=1)
LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
KIND = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
REFUSING = f"echo '{LIMIT}' >&2\necho '{KIND}' >&2\nexit 1"


def holes(*names: str) -> Snapshot:
    return Snapshot(0.0, tuple(Node(name, NodeState.HOLE, name) for name in names), ())


SEEN = Surroundings(SPEC, holes("n1", "n2", "n3"), own_jobs=3)


def refused(*nodes: str, at: float = 0.0) -> Setback:
    last = None
    for name in nodes:
        last = setbacks.after(last, SetbackKind.REFUSED, "no", [name], SEEN, at)
    assert last is not None
    return last


def test_each_wait_is_twice_the_one_before_up_to_minutes() -> None:
    waits = [setbacks.delay_s(times, 5.0) for times in range(1, 40)]
    assert waits[:4] == [5.0, 10.0, 20.0, 40.0]
    assert max(waits) == waits[-1] == setbacks.LONGEST_S


def test_another_node_is_tried_at_once_and_after_two_none() -> None:
    once, twice = refused("n1"), refused("n1", "n2")
    assert not setbacks.may_launch(once, ["n1"], SEEN, 1.0)
    assert setbacks.may_launch(once, ["n2"], SEEN, 1.0)
    assert setbacks.suspected_node(once, SEEN, 1.0) == "n1"
    assert not setbacks.may_launch(twice, ["n3"], SEEN, 1.0)
    assert setbacks.suspected_node(twice, SEEN, 1.0) is None
    assert setbacks.may_launch(twice, ["n3"], SEEN, twice.next_at)


def test_launches_that_were_under_way_already_are_the_same_try() -> None:
    last = refused("n1", at=10.0)
    kind = SetbackKind.UNREPORTED
    same = setbacks.after(last, kind, "no", ["n2"], SEEN, 12.0, begun_at=9.0)
    other = setbacks.after(last, kind, "no", ["n2"], SEEN, 12.0, begun_at=11.0)
    assert (last.times, same.times, other.times) == (1, 1, 2)


def test_what_a_launch_depends_on_makes_the_next_due_at_once() -> None:
    last = refused("n1", "n2")
    down = replace(SEEN.snapshot, nodes=(Node("n1", NodeState.UNAVAILABLE, "n1"), *SEEN.snapshot.nodes[1:]))
    scaled = SPEC.model_copy(update={"max_nodes": 2})
    assert not setbacks.may_launch(last, ["n3"], replace(SEEN, own_jobs=4), 1.0)
    for changed in (replace(SEEN, own_jobs=2), replace(SEEN, snapshot=down), replace(SEEN, spec=scaled)):
        assert setbacks.may_launch(last, ["n3"], changed, 1.0)


def test_a_node_that_alone_is_refused_stays_suspect_while_others_are_taken() -> None:
    assert setbacks.after_acceptance(refused("n1"), ["n2"]) == refused("n1")
    assert setbacks.after_acceptance(refused("n1"), ["n1"]) is None
    assert setbacks.after_acceptance(refused("n1", "n2"), ["n3"]) is None


class Turns:
    """Planning turns for one trainer, on a clock that the test moves."""

    def __init__(self, sessions: Sessions, folder: Path, scheduler: Scheduler, patch: pytest.MonkeyPatch) -> None:
        self.sessions, self.scheduler = sessions, scheduler
        self.reason = ""
        self.logs: dict[str, list[str]] = {}
        """Bad nodes, with what is in the log of each fragment that ends there."""
        self.now = time.time()
        patch.setattr(time, "time", lambda: self.now)
        self.lease = LeaseHolder(sessions, alone=True)
        settings = Settings(data_dir=folder)
        configs = FragmentConfigs(settings, b"secret", "http://service.test", 10.0)
        self.planner = Planner(settings, sessions, self.lease)
        self.executor = Executor(self.lease, scheduler, configs)
        with sessions.begin() as session:
            self.trainer = add_trainer(session, SPEC, "ulla").id

    def take(self, snapshot: Snapshot, for_s: float, every_s: float = 3.0) -> None:
        """Turns at the pace of the control loop."""
        until = self.now + for_s
        while self.now < until:
            assert self.lease.acquire()
            observed = Observation(1, replace(snapshot, taken_at=self.now))
            self.end_fragments(observed.snapshot)
            plan = self.planner.plan(observed)
            assert plan is not None
            self.executor.carry_out(plan, observed)
            self.now += every_s

    def end_fragments(self, snapshot: Snapshot) -> None:
        """Have the jobs of fragments on bad nodes end, and those be withdrawn for which Slurm names a reason."""
        with self.sessions.begin() as session:
            live = [each for each in live_fragments(session) if each.node not in self.logs]
            jobs = tuple(OwnJob("1", each.id, each.node) for each in live)
            nodes = {each.id: each.node for each in live_fragments(session)}
            waiting = {each.id: self.reason for each in live if self.reason}
            jobs = tuple(job for job in jobs if job.fragment not in waiting)
            seen = replace(snapshot, own_jobs=jobs, withdrawn=frozenset(waiting), kept_waiting=waiting)
            end_fragments(session, seen, 3600.0, now=self.now, log_of=lambda one: self.logs[nodes[one]])

    def view(self) -> TrainerView:
        with self.sessions.begin() as session:
            return trainer_view(session, session.get_one(Trainer, self.trainer))

    def row(self) -> Trainer:
        with self.sessions.begin() as session:
            return session.get_one(Trainer, self.trainer)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Three idle nodes, and an `sbatch` that a submit limit lets refuse everything."""
    site = make_site(tmp_path)
    (tmp_path / "sbatch").write_text(FAKE.format(folder=tmp_path, answer=REFUSING), encoding="utf-8")
    site.source.nodes = (node("n1"), node("n2"), node("n3"))
    site.scheduler.start(lambda: None)
    yield site
    site.scheduler.stop()


def test_a_refusal_is_told_in_its_own_words_and_repeated_rarely(
    sessions: Sessions, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = site.scheduler.snapshot()
    counted = REFUSALS._value.get()
    turns = Turns(sessions, tmp_path, site.scheduler, monkeypatch)
    turns.take(seen, for_s=300.0)
    calls = len(site.calls("sbatch"))
    assert 4 <= calls <= 10  # one in each turn would be 100
    assert REFUSALS._value.get() - counted == calls
    with sessions.begin() as session:
        told = session.scalars(select(EventRecord.message).where(EventRecord.kind == "launch.refused")).all()
    view = turns.view()
    assert len(told) == calls
    for text in (*told, view.condition):
        assert f"{LIMIT}; {KIND}" in text
    assert (view.status, view.attempt) == (Status.WAITING, None)
    assert view.reason.startswith("Waits for its next launch on 1 node")

    (tmp_path / "sbatch").write_text(FAKE.format(folder=tmp_path, answer="echo Submitted batch job 7"))
    with sessions.begin() as session:
        trainer = session.get_one(Trainer, turns.trainer)
        trainer.spec = trainer.spec.model_copy(update={"weight": 1.5})
    turns.take(seen, for_s=1.0)
    assert len(site.calls("sbatch")) == calls + 1
    assert turns.row().setback is None


def test_nothing_is_submitted_into_a_closed_partition_and_that_is_told(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Taking()
    turns = Turns(sessions, tmp_path, scheduler, monkeypatch)  # type: ignore[arg-type]
    closed = replace(holes("n1"), closed="Slurm's partition fill is DOWN")
    turns.take(closed, for_s=30.0)
    assert scheduler.asked == []
    with sessions.begin() as session:
        assert turns.lease.note_snapshot(session, turns.now, closed.closed).closed == ""
    assert turns.view().reason == "Waits: Slurm's partition fill is DOWN, so nothing is launched."
    turns.take(holes("n1"), for_s=1.0)
    assert scheduler.asked == ["n1"]


class OneRefused:
    """A scheduler that refuses some nodes."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.asked: list[str] = []

    def submit(self, config: FragmentConfig) -> str:
        self.asked.append(config.node)
        if config.node in self.refused:
            raise SubmissionRefused("sbatch: error: Invalid node name specified")
        return f"job on {config.node}"


def test_a_node_that_is_refused_costs_itself(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = OneRefused("n1")
    turns = Turns(sessions, tmp_path, scheduler, monkeypatch)  # type: ignore[arg-type]
    turns.take(holes("n1", "n2"), for_s=6.0)
    assert scheduler.asked == ["n1", "n2"]


NO_PYTHON = [
    "slurmstepd: error: execve(): /shared/venv/bin/python: Permission denied",
    "srun: error: {}: task 0: Exited with exit code 13",
]
RAISED = [
    "submitit ERROR (2026-01-01) - Submitted job triggered an exception",
    "Traceback:",
    "ValueError: {} is odd",
]


@each(
    ("lines", "text", "is_own"),
    [
        ([], "its log is empty", False),
        (NO_PYTHON, NO_PYTHON[0], False),
        (["srun: error: n1: task 0: Killed"], "srun: error: n1: task 0: Killed", False),
        (RAISED, RAISED[-1], True),
        (
            [RAISED[0], "ModuleNotFoundError: No module named 'submitit'"],
            "ModuleNotFoundError: No module named 'submitit'",
            False,
        ),
    ],
)
def test_last_words_tell_why_and_whose_fault_it_was(lines: list[str], text: str, is_own: bool) -> None:
    assert setbacks.last_words(lines) == setbacks.LastWords(text, is_own)


def test_errors_look_the_same_whatever_node_and_numbers_they_name() -> None:
    assert setbacks.looks_the_same("on gpu-a: pid 71 died", "on gpu-b: pid 8 died", ["gpu-a", "gpu-b"])
    assert not setbacks.looks_the_same("on gpu-a: pid 71 died", "on gpu-b: no room", ["gpu-a", "gpu-b"])


class Taking(OneRefused):
    """A scheduler that takes every submission."""


def test_a_bad_node_costs_itself_and_no_attempt(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Taking()
    turns = Turns(sessions, tmp_path, scheduler, monkeypatch)  # type: ignore[arg-type]
    bad = ("n1", "n2", "n3", "n4")
    turns.logs = dict.fromkeys(bad, NO_PYTHON)
    turns.take(holes(*bad, "n5"), for_s=59.0)
    assert scheduler.asked[-1] == "n5"
    assert sorted(scheduler.asked) == [*bad, "n5"]
    row, view = turns.row(), turns.view()
    assert (row.crashes, view.attempt, view.status) == (0, None, Status.STARTING)
    assert NO_PYTHON[0] in view.condition
    assert "n1, n2, n3, n4" in view.condition
    with sessions.begin() as session:
        observe.write_snapshot(session, holes(*bad, "n5"), None)
        shown = _present(session).nodes
        told = {each.name: each.avoided_because for each in shown}
        causes = set(session.scalars(select(Fragment.cause).where(Fragment.node != "n5")))
        launch_records.note_begun(
            session, row, session.scalars(select(Fragment).where(Fragment.node == "n5")).one(), is_ready=True
        )
    assert told == {**dict.fromkeys(bad, NO_PYTHON[0]), "n5": ""}
    assert _used_by(shown[1]).startswith("avoided for ")
    assert causes == {"never reported"}
    assert row.setback is None


def test_a_node_is_avoided_longer_each_time_until_an_administrator_has_had_it(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Taking()
    turns = Turns(sessions, tmp_path, scheduler, monkeypatch)  # type: ignore[arg-type]
    turns.logs = {"n1": NO_PYTHON}
    turns.take(holes("n1"), for_s=600.0)
    assert len(scheduler.asked) == 4  # at 0, 1, 3 and 7 minutes
    down = replace(holes("n1"), nodes=(Node("n1", NodeState.UNAVAILABLE, "n1"),), taken_at=turns.now)
    with sessions.begin() as session:
        seen = observe.write_snapshot(session, down, None)
        observe.write_snapshot(session, replace(holes("n1"), taken_at=turns.now), seen)
        assert launch_records.avoided(session, turns.now) == []


def test_an_error_of_its_own_on_two_nodes_is_the_trainers(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Taking()
    turns = Turns(sessions, tmp_path, scheduler, monkeypatch)  # type: ignore[arg-type]
    turns.logs = {name: [line.format(name) for line in RAISED] for name in ("n1", "n2", "n3")}
    turns.take(holes("n1", "n2", "n3"), for_s=30.0)
    assert scheduler.asked == ["n1", "n2"]
    assert turns.row().state == TrainerState.FAILED
    assert turns.row().message == "ValueError: n2 is odd (the same on n1 and n2)"
    with sessions.begin() as session:
        assert [row.node for row in launch_records.avoided(session, turns.now)] == []


def test_a_newcomer_that_cannot_load_what_others_train_costs_its_node(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.say("a", Phase.READY)
    trainer.turn(after_s=1.0)
    trainer.switch("a", trainer.row.generation, 0)
    failure = {"stage": "load", "step": 0, "message": "no CUDA device on b", "traceback": ""}
    for name, state in (("b", TrainerState.RUNNING), ("c", TrainerState.FAILED)):
        trainer.launch(name)
        trainer.say(name, Phase.FAILED, failure=failure)
        trainer.turn(after_s=1.0)
        assert trainer.row.state == state
    assert trainer.row.message == "no CUDA device on b (the same on b and c)"


def test_a_job_that_a_limit_keeps_pending_is_told_of_and_submitted_rarely(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Taking()
    turns = Turns(sessions, tmp_path, scheduler, monkeypatch)  # type: ignore[arg-type]
    turns.reason = "QOSMaxJobsPerUserLimit"
    turns.take(holes("n1", "n2", "n3"), for_s=300.0)
    assert 4 <= len(scheduler.asked) <= 10
    view = turns.view()
    assert "waited for a node in vain" in view.condition
    assert "QOSMaxJobsPerUserLimit" in view.condition
    assert turns.row().crashes == 0
