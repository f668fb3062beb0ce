"""The weights' moving average through changes of nodes, against torch's own in one undisturbed process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from averaged_tasks import DECAY, STEPS, build_averaged_task, build_staged_task, expected_metrics
from oakum_worker.task import Task
from sharded_ranks import Act, Outcome, Script, play
from training_ranks import build_spec

AVERAGED = {"ema": {"decay": DECAY}, "checkpoint": {"hot_every_steps": 4}}
SHARDED = {**AVERAGED, "parallel": {"data": "sharded"}}


def staged(schedule: str) -> dict[str, Any]:
    return {**AVERAGED, "parallel": {"pipeline": {"stages": 4, "schedule": schedule, "micro_batch": 1}}}


def assert_averages(outcomes: list[Outcome | None]) -> None:
    """Check that every rank that evaluated has found the metrics of torch's own average."""
    expected = expected_metrics()
    found = [(step, metrics) for outcome in outcomes if outcome for step, metrics in outcome.metrics.items()]
    assert {step for step, _ in found} == set(expected) == {7, 14}
    for step, metrics in found:
        assert metrics == {
            name: pytest.approx(value, rel=1e-12, abs=1e-12) for name, value in expected[step].items()
        }


WAYS = pytest.mark.parametrize(
    ("build", "spec"),
    [
        (build_averaged_task, SHARDED),
        pytest.param(build_staged_task, staged("1f1b"), marks=pytest.mark.soak),
        (build_staged_task, staged("chimera")),
    ],
    ids=["sharded", "1f1b", "chimera"],
)


@WAYS
def test_an_average_grows_and_shrinks_with_its_trainer(
    tmp_path: Path, build: Callable[[], Task], spec: dict[str, Any]
) -> None:
    acts = (Act((0, 1, 2, 3), until=3), Act((1, 3), until=8), Act((3,), until=9), Act((0, 3, 2, 1), until=STEPS))

    assert_averages(play(Script(acts, str(tmp_path), build, spec, measured=False)))


@WAYS
def test_a_lost_ranks_part_of_an_average_comes_back(
    tmp_path: Path, build: Callable[[], Task], spec: dict[str, Any]
) -> None:
    acts = (Act((0, 1, 2, 3), until=6, dies=(2,)), Act((3, 0, 1), until=STEPS))

    assert_averages(play(Script(acts, str(tmp_path), build, spec, measured=False)))


@WAYS
def test_a_checkpoint_has_the_average_and_any_number_of_ranks_goes_on_from_it(
    tmp_path: Path, build: Callable[[], Task], spec: dict[str, Any]
) -> None:
    first = (Act((0, 1, 2), until=8),)
    before = play(Script(first, str(tmp_path), build, spec, finish=True, measured=False))
    after = play(Script((Act((0, 1), STEPS),), str(tmp_path), build, spec, measured=False))

    assert after[0] is not None
    assert after[0].origins == ["checkpoint"]
    assert_averages([*before, *after])


def test_the_spec_is_the_one_that_scripts_give() -> None:
    spec = build_spec(**SHARDED)
    assert spec.ema is not None
    assert spec.ema.decay == DECAY
