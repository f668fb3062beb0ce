"""From the agents' progress to the curve that the planner reads."""

from __future__ import annotations

import dataclasses
import math

import pytest

from oakum_service.api.views import trainer_view
from oakum_service.config import Settings
from oakum_service.control.curves import curves_to_plan_with
from oakum_service.control.rates import RateRecorder, measured_rates
from oakum_service.db.engine import Sessions
from oakum_service.db.models.progress import MeasuredRate
from oakum_service.db.models.trainers import Trainer
from oakum_service.states import TrainerState
from oakum_solver.curves import linear_curve
from oakum_solver.exploration import Exploration
from oakum_solver.problem import Curve
from oakum_worker.protocol import TrainingProgress
from oakum_worker.spec import TrainerSpec

BATCH = 100
LEARNING = Settings(learn_curves=True, explore_share=0.0)


def add_trainer(sessions: Sessions, name: str, **fields: object) -> None:
    defaults = {"name": name, "entrypoint": "a:b", "global_batch": BATCH, "epochs": 1, "max_nodes": 8}
    spec = TrainerSpec.model_validate(defaults | fields)
    with sessions.begin() as session:
        session.add(
            Trainer(
                id=name,
                name=name,
                spec=spec,
                state=TrainerState.RUNNING,
                submitted_at=0.0,
            )
        )


def add_rate(sessions: Sessions, trainer: str, nodes: int, rate: float, seconds: float) -> None:
    with sessions.begin() as session:
        session.add(
            MeasuredRate(
                trainer_id=trainer,
                nodes=nodes,
                seconds=seconds,
                samples=rate * seconds,
                explored_s=0.0,
                recent=[[seconds, rate]],
            )
        )


class Training:
    """A trainer's rank 0 as the controller hears it: one report a second."""

    def __init__(self, sessions: Sessions, exploration: Exploration = Exploration(share=0.0)) -> None:
        self._sessions = sessions
        self.keeper = RateRecorder(exploration)
        self.now = TrainingProgress(generation=0, nodes=1, step=0, total_steps=10**6, epoch=0, samples=0)

    def hear(self, **changes: object) -> None:
        self.now = TrainingProgress.model_validate(self.now.model_dump() | changes)
        with self._sessions.begin() as session:
            self.keeper.take(session, "digits", self.now)

    def switch(self, nodes: int) -> None:
        """A new generation, whose first reports are slow."""
        for rate in (1.0, 2.0):
            self.hear(
                generation=self.now.generation + (rate == 1.0),
                nodes=nodes,
                step=self.now.step + 1,
                samples=self.now.samples + BATCH,
                samples_per_s=rate,
            )

    def train(self, rate: float, seconds: int) -> None:
        for _ in range(seconds):
            steps = round(rate / BATCH)
            self.hear(step=self.now.step + steps, samples=self.now.samples + steps * BATCH, samples_per_s=rate)


def written(sessions: Sessions) -> dict[int, tuple[float, float, list[list[float]]]]:
    """Nodes -> seconds, samples and the newest windows, as the database has them."""
    with sessions.begin() as session:
        rows = measured_rates(session, ["digits"]).get("digits", [])
        return {row.nodes: (row.seconds, row.samples, [[*window] for window in row.recent]) for row in rows}


def planned(sessions: Sessions, settings: Settings = LEARNING) -> dict[str, Curve]:
    with sessions.begin() as session:
        trainers = session.query(Trainer).order_by(Trainer.id).all()
        return curves_to_plan_with(session, trainers, settings)


@pytest.fixture
def training(sessions: Sessions) -> Training:
    add_trainer(sessions, "digits")
    return Training(sessions)


def test_undisturbed_training_is_measured_at_each_size(sessions: Sessions, training: Training) -> None:
    """The first, slow steps of each generation are not counted."""
    training.switch(nodes=1)
    training.train(1000.0, seconds=11)
    training.switch(nodes=2)
    training.train(1800.0, seconds=6)
    window, longer = [5.0, 1000.0], [5.0, 1800.0]
    assert written(sessions) == {1: (10.0, 10_000.0, [window, window]), 2: (5.0, 9_000.0, [longer])}


def test_what_is_left_of_a_size_counts_when_it_comes_back(sessions: Sessions, training: Training) -> None:
    for nodes in (1, 2, 1, 2):
        training.switch(nodes)
        training.train(1000.0, seconds=4)  # of which one settles the new generation
    assert {nodes: row[0] for nodes, row in written(sessions).items()} == {1: 5.0, 2: 5.0}


def test_nothing_is_written_before_a_window_is_full(sessions: Sessions, training: Training) -> None:
    training.switch(nodes=1)
    training.train(1000.0, seconds=5)
    assert written(sessions) == {}


def test_reports_heard_twice_or_of_a_former_rank_0_do_not_count(sessions: Sessions, training: Training) -> None:
    training.switch(nodes=1)
    training.train(1000.0, seconds=3)
    of_before = training.now
    training.switch(nodes=2)
    for _ in range(6):
        training.train(1800.0, seconds=1)
        training.hear()
        heard = training.now
        training.hear(**of_before.model_dump())
        training.now = heard
    assert written(sessions) == {2: (5.0, 9_000.0, [[5.0, 1800.0]])}


@pytest.mark.parametrize("rate", [None, 0.0, -1.0, math.nan, math.inf, 5e-324])
def test_a_rate_that_is_none_is_not_counted(sessions: Sessions, training: Training, rate: float | None) -> None:
    training.switch(nodes=1)
    training.train(1000.0, seconds=1)
    for _ in range(20):
        training.hear(step=training.now.step + 1, samples=training.now.samples + BATCH, samples_per_s=rate)
    assert written(sessions) == {}


def test_the_newest_windows_are_kept(sessions: Sessions, training: Training) -> None:
    training.switch(nodes=1)
    training.train(1000.0, seconds=1 + 5 * 4)
    training.train(500.0, seconds=5 * 16)
    seconds, _, recent = written(sessions)[1]
    assert (seconds, recent) == (100.0, [[5.0, 500.0]] * 16)
    assert planned(sessions)["digits"].rate(1) == pytest.approx(500.0, rel=0.02)


def test_what_was_explored_is_counted_as_long_as_the_size_is_to_be_tried(sessions: Sessions) -> None:
    add_trainer(sessions, "digits")
    add_rate(sessions, "digits", nodes=4, rate=4000.0, seconds=1000.0)
    training = Training(sessions, Exploration(share=0.02, min_seconds=8.0))
    training.switch(nodes=5)
    training.train(1000.0, seconds=16)
    with sessions.begin() as session:
        row = session.get_one(MeasuredRate, ("digits", 5))
        assert (row.seconds, row.explored_s) == (15.0, 8.0)


def test_a_trainer_that_has_ended_is_forgotten(sessions: Sessions, training: Training) -> None:
    training.switch(nodes=1)
    training.train(1000.0, seconds=4)
    training.keeper.forget_all_but([])
    training.train(1000.0, seconds=5)
    assert written(sessions) == {}


def test_measured_rates_correct_the_users_curve(sessions: Sessions) -> None:
    add_trainer(sessions, "digits", curve=[[1, 10], [2, 20], [4, 40], [8, 80]])
    for nodes, rate in ((1, 1000.0), (2, 1300.0), (4, 1500.0)):
        add_rate(sessions, "digits", nodes, rate, seconds=300.0)
    curve = planned(sessions)["digits"]
    assert [curve.rate(nodes) for nodes in (1, 2, 4)] == pytest.approx([1000.0, 1300.0, 1500.0], rel=0.03)
    assert curve.rate(8) == pytest.approx(1600.0, rel=0.05)


def test_a_trainer_without_measurements_has_its_users_curve(sessions: Sessions) -> None:
    add_trainer(sessions, "digits", curve=[[1, 10], [8, 40]])
    assert planned(sessions) == {"digits": Curve(((1, 10.0), (8, 40.0)))}


def test_unknown_trainers_among_themselves_are_all_linear(sessions: Sessions) -> None:
    for name in ("first", "second"):
        add_trainer(sessions, name)
    assert planned(sessions) == {"first": linear_curve(8), "second": linear_curve(8)}


def test_an_unknown_trainer_beside_known_ones_is_promised_its_minimum(sessions: Sessions) -> None:
    """Otherwise its worth would be one sample per second, and it would never be measured."""
    add_trainer(sessions, "known")
    add_rate(sessions, "known", nodes=1, rate=700.0, seconds=1e6)
    add_trainer(sessions, "new", min_nodes=2)
    curves = planned(sessions)
    assert curves["new"] == Curve(((2, 2 * curves["known"].rate(1)), (8, 2 * curves["known"].rate(1) + 6.0)))


def test_sizes_are_tried_within_the_share_of_the_node_time(sessions: Sessions) -> None:
    add_trainer(sessions, "digits")
    add_rate(sessions, "digits", nodes=2, rate=2000.0, seconds=1600.0)
    add_rate(sessions, "digits", nodes=8, rate=8000.0, seconds=100.0)
    sober = planned(sessions)["digits"]
    hopeful = planned(sessions, Settings(learn_curves=True, explore_share=0.02))["digits"]
    raised = [nodes for nodes in range(1, 9) if hopeful.rate(nodes) > sober.rate(nodes)]
    assert raised == [1, 3, 4]  # 20 s on 4 of the 4,000 node-seconds' 2 %


def test_curves_are_not_learnt_where_they_are_not_asked_for(sessions: Sessions) -> None:
    add_trainer(sessions, "digits", curve=[[1, 10], [8, 40]])
    add_trainer(sessions, "linear")
    add_rate(sessions, "digits", nodes=1, rate=700.0, seconds=100.0)
    assert planned(sessions, Settings(learn_curves=False)) == {
        "digits": Curve(((1, 10.0), (8, 40.0))),
        "linear": linear_curve(8),
    }


def test_the_embedded_cluster_learns_only_when_it_is_told_to() -> None:
    assert not Settings().learns_curves
    assert Settings(learn_curves=True).learns_curves
    assert Settings(scheduler="slurm").learns_curves
    assert not Settings(scheduler="slurm", learn_curves=False).learns_curves
    assert Settings().exploration == dataclasses.replace(Exploration(), share=0.0)


def test_a_trainers_document_shows_what_was_measured(sessions: Sessions) -> None:
    add_trainer(sessions, "digits")
    for nodes, rate in ((2, 1300.0), (1, 700.0)):
        add_rate(sessions, "digits", nodes, rate, seconds=40.0)
    with sessions.begin() as session:
        view = trainer_view(session, session.get_one(Trainer, "digits"))
    assert [rate.model_dump() for rate in view.measured_rates] == [
        {"nodes": 1, "samples_per_s": 700.0, "seconds": 40.0},
        {"nodes": 2, "samples_per_s": 1300.0, "seconds": 40.0},
    ]


def predict(sessions: Sessions, *points: object) -> None:
    with sessions.begin() as session:
        trainer = session.get_one(Trainer, "digits")
        told = {"generation": 1, "nodes": 1, "step": 1, "total_steps": 9, "epoch": 0, "samples": 1}
        trainer.progress = TrainingProgress.model_validate(told | {"predicted_curve": points})


@pytest.mark.parametrize("slots", ["auto", 2, "node"])
def test_what_the_worker_predicts_is_the_curve_until_it_is_measured(sessions: Sessions, slots: int | str) -> None:
    """It predicts for ranks, of which each slot has one, however many slots a fragment has."""
    add_trainer(sessions, "digits", slots_per_fragment=slots)
    predict(sessions, [2, 100.0], [4, 180.0], [8, 300.0])
    assert planned(sessions)["digits"].rate(4) == pytest.approx(180.0)
    add_rate(sessions, "digits", nodes=4, rate=90.0, seconds=3600.0)
    assert planned(sessions)["digits"].rate(4) == pytest.approx(90.0, rel=0.05)


def test_the_users_own_curve_goes_before_what_the_worker_predicts(sessions: Sessions) -> None:
    add_trainer(sessions, "digits", curve=[[1, 10.0], [4, 40.0]])
    predict(sessions, [4, 180.0])
    assert planned(sessions)["digits"].rate(4) == pytest.approx(40.0)


@pytest.mark.parametrize(
    "points", [[[4, 5.0], [2, 9.0]], [[1, math.inf]], [[0, 1.0]], [[1, 5.0], [2, 3.0]], [[1, -1.0]]]
)
def test_no_prediction_keeps_the_planner_from_planning(sessions: Sessions, points: list[object]) -> None:
    add_trainer(sessions, "digits")
    predict(sessions, *points)
    assert planned(sessions)["digits"].rate(1) >= 0
