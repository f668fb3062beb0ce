"""A trainer whose rate nobody knows is tried at once: who it is, how many at a time, and what others keep."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from cells import each
from empty_databases import new_sessions
from oakum_service.control.fragment_ends import end_fragment
from oakum_service.control.speed_trials import unmeasured
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.progress import MeasuredRate
from oakum_service.db.models.trainers import Trainer
from oakum_solver.objectives import NamedObjective
from oakum_solver.problem import Curve, PlannedTrainer
from oakum_solver.speed_trials import LONGEST_S, guaranteed_now
from oakum_worker.protocol import TrainingProgress
from oakum_worker.spec import TrainerSpec
from virtual_site import VirtualSite

FAST = {"curve": [[1, 6000], [2, 11400], [3, 16200], [4, 19800]], "max_nodes": 4}


def new_site(
    sessions: Sessions, folder: Path, patch: pytest.MonkeyPatch, *fast: str, objective: NamedObjective
) -> VirtualSite:
    """Four nodes that trainers with curves of thousands of samples/s train on."""
    site = VirtualSite(sessions, folder, num_nodes=4, busy=0, start_up_s=2.0, objective=objective)
    patch.setattr(time, "time", site.time)
    site.begin()
    for name in fast:
        site.submit(name, **FAST)
    run_until_trained(site, fast, 10)
    return site


def run_until_trained(
    site: VirtualSite, names: Sequence[str], most_s: int, on_turn: Callable[[], None] = lambda: None
) -> None:
    """Simulate until all of these trainers have begun to train, for `most_s` at most."""
    for _ in range(most_s):
        site.run(1, on_turn)
        if site.first_trained_at.keys() >= {*names}:
            break


def test_trainers_without_a_curve_are_tried_one_after_the_other_and_the_others_keep_some_nodes(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = new_site(sessions, tmp_path, monkeypatch, "fast-1", "fast-2", objective=NamedObjective.SPEEDUP)
    assert site.sizes() == {"fast-1": 2, "fast-2": 2}
    submitted_at, least = site.now, 4
    names = ["mine-1", "mine-2", "mine-3"]
    for name in names:
        site.submit(name)

    def look() -> None:
        nonlocal least
        if set(site.first_trained_at) >= {*names[:2]}:
            least = min(least, sum(size for name, size in site.sizes().items() if name in ("fast-1", "fast-2")))

    run_until_trained(site, names, 40, look)
    waits_s = [site.first_trained_at[name] - submitted_at for name in names]
    assert max(waits_s[:2]) <= 15.0
    assert waits_s[1] < waits_s[2] <= 40.0
    assert waits_s == sorted(waits_s)
    assert least >= 1


def chosen(*trainers: PlannedTrainer, held: Mapping[str, int] = {}, nodes: int = 4) -> list[str]:
    """The trainers on trial; those of unknown speed have names that begin with `u`."""
    unknown = {trainer.id for trainer in trainers if trainer.id.startswith("u")}
    tried = guaranteed_now(trainers, unknown, held, nodes)
    return [trainer.id for trainer in trainers if trainer.id in tried]


def posed(id_: str, **fields: int) -> PlannedTrainer:
    return PlannedTrainer(id_, Curve(((1, 10.0),)), **fields)


def test_trials_take_at_most_half_of_the_nodes_that_others_train_on_in_order_of_submission() -> None:
    five = [posed(f"u{number}") for number in range(5)]
    assert chosen(posed("known"), *five, held={"known": 4}) == ["u0", "u1"]
    assert chosen(posed("known"), *five, held={"known": 9}, nodes=9) == ["u0", "u1", "u2", "u3"]


def test_trials_take_all_that_is_idle() -> None:
    five = [posed(f"u{number}") for number in range(5)]
    assert chosen(posed("known"), *five, held={"known": 1}, nodes=6) == [f"u{number}" for number in range(5)]


def test_one_that_needs_more_than_half_is_tried_alone() -> None:
    large, small = posed("u-large", min_nodes=4, max_nodes=4), posed("u-small")
    assert chosen(posed("known"), large, small, held={"known": 4}) == ["u-large"]
    assert chosen(posed("known"), small, large, held={"known": 4}) == ["u-small"]
    assert chosen(large, nodes=3) == []


def test_a_trial_takes_no_node_from_a_higher_priority() -> None:
    high = posed("high", priority=1, min_nodes=2, max_nodes=8)
    assert chosen(high, posed("u"), held={"high": 4}) == []
    assert chosen(high, posed("u"), held={"high": 3}) == ["u"]
    assert chosen(high, posed("u"), posed("u2"), posed("u3"), nodes=4) == ["u", "u2"]
    assert chosen(posed("low", priority=-1), posed("u"), held={"low": 1}, nodes=1) == ["u"]


def add(sessions: Sessions, name: str, progress: TrainingProgress | None = None, **fields: object) -> None:
    required = {"name": name, "entrypoint": "a:b", "global_batch": 96, "epochs": 1, "max_nodes": 8}
    spec = TrainerSpec.model_validate(required | fields)
    with sessions.begin() as session:
        row = Trainer(id=name, name=name, spec=spec, state="waiting", submitted_at=0.0, progress=progress)
        session.add(row)


def predicting(*curve: tuple[int, float]) -> TrainingProgress:
    return TrainingProgress(
        generation=1, nodes=1, step=1, total_steps=9, epoch=0, samples=1, predicted_curve=curve
    )


def untried(sessions: Sessions) -> set[str]:
    with sessions.begin() as session:
        return unmeasured(session, session.query(Trainer).all(), time.time())


def test_who_has_a_curve_was_predicted_or_measured_is_not_tried(sessions: Sessions) -> None:
    add(sessions, "curve", curve=[[1, 10]])
    add(sessions, "types", curves_by_type={"gpu": [[1, 10]]})
    add(sessions, "predicted", progress=predicting((1, 10.0)))
    add(sessions, "measured")
    add(sessions, "new")
    with sessions.begin() as session:
        rate = {"nodes": 1, "seconds": 5.0, "samples": 50.0, "explored_s": 0.0, "recent": [[5.0, 10.0]]}
        session.add(MeasuredRate(trainer_id="measured", **rate))
    assert untried(sessions) == {"new"}


def test_a_trial_that_measures_nothing_ends(sessions: Sessions) -> None:
    """Two nodes for the longest time of one, in pieces: then for as long as both together may."""
    add(sessions, "slow", min_nodes=2)
    now = time.time()
    for number, (begun, ended) in enumerate([(-1000.0, -1000.0 + LONGEST_S), (-LONGEST_S / 2, None)]):
        with sessions.begin() as session:
            fragment = Fragment(
                id=str(number), trainer_id="slow", node="n1", state=FragmentState.LIVE, launched_at=now + begun
            )
            session.add(fragment)
            session.flush()
            if ended is not None:
                end_fragment(session, fragment, now + ended)
    assert untried(sessions) == {"slow"}
    with sessions.begin() as session:
        session.add(
            Fragment(
                id="2", trainer_id="slow", node="n2", state=FragmentState.LIVE, launched_at=now - LONGEST_S / 2
            )
        )
    assert untried(sessions) == set()


@each("objective", [NamedObjective.THROUGHPUT, NamedObjective.SPEEDUP, NamedObjective.FAIR_SHARE])
def test_no_objective_keeps_a_trainer_of_unknown_rate_waiting(
    empty_database: Path, tmp_path: Path, objective: NamedObjective
) -> None:
    folder = tmp_path / objective
    folder.mkdir()
    with new_sessions(empty_database, folder) as sessions, pytest.MonkeyPatch.context() as patch:
        site = new_site(sessions, folder, patch, "fast-1", objective=objective)
        submitted_at = site.now
        site.submit("mine")
        run_until_trained(site, ["mine"], 15)
        assert site.first_trained_at["mine"] - submitted_at <= 15.0
        assert site.sizes().keys() == {"fast-1", "mine"}
        if objective is NamedObjective.SPEEDUP:
            site.run(9)
            # It has been measured, and keeps what it has: one node of each is worth as much in its own scale.
            assert site.sizes().keys() == {"fast-1", "mine"}
