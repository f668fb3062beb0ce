"""What each adapter promises: on ranks that come, leave and are killed a script ends as it does alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adapters import BATCH, LIBRARIES, STEPS_PER_EPOCH, Library, Told, Training, spec
from oakum_worker.errors import SessionError
from oakum_worker.session.hosts import HOST, RankHost
from oakum_worker.step.turns import turns_alone
from session_ranks import Plan, Stage, checkpoint_after, random_stages


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    chosen: Library = request.param
    chosen.prepare(request)
    return chosen


class Comparison:
    """A training alone, and on ranks."""

    def __init__(self, library: Library, folder: Path, training: Training) -> None:
        self.library, self.training = library, training
        self.expected, self.found = Told(), Told()
        self.weights = library.script(training, self.expected, folder)(None)
        self.script = library.script(training, self.found, folder)

    def run(self, stages: list[Stage], begin: Any = None) -> None:
        """Train on ranks, and compare."""
        results = Plan(stages, spec(epochs=self.training.epochs), self.script, begin).run()
        expected, found = self.expected, self.found
        assert found.losses == pytest.approx(expected.losses, rel=1e-9)
        assert found.rates == pytest.approx(expected.rates, rel=1e-12)
        assert found.validations == pytest.approx(expected.validations, rel=self.library.rel)
        assert set(found.ends) == set(expected.ends) == {len(expected.losses)}
        for remembered in found.remembered:
            assert remembered == pytest.approx(list(expected.validations.values()), rel=1e-9)
        for log in found.logs:
            for line, other in zip(expected.logs[0], log, strict=True):
                assert other == pytest.approx(line, rel=1e-5)
        for name in stages[-1].members:
            for one, other in zip(results[name], self.weights, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("num_stages", "epochs", "seed"), [(8, 5, 10), pytest.param(24, 12, 5, marks=pytest.mark.soak)]
)
def test_a_script_ends_alike_through_random_disturbances(
    library: Library, tmp_path: Path, num_stages: int, epochs: int, seed: int
) -> None:
    both = Comparison(library, tmp_path, Training(epochs))
    assert len(both.expected.losses) == epochs * STEPS_PER_EPOCH
    assert len(both.expected.validations) >= epochs
    stages = random_stages(num_stages, seed)
    victims = sum(stage.victim is not None for stage in stages)
    assert victims >= 4
    both.run(stages)
    assert both.found.lost >= victims * (not library.runs_the_loop)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(2, id="inner", marks=pytest.mark.soak),
        pytest.param(STEPS_PER_EPOCH - 1, id="last", marks=pytest.mark.soak),
        pytest.param(STEPS_PER_EPOCH, id="first"),
    ],
)
def test_a_step_that_one_rank_alone_loses_is_not_taken_twice(library: Library, tmp_path: Path, step: int) -> None:
    """The others have taken it, at the end of an epoch with what follows there, and the rank goes on with them."""
    both = Comparison(library, tmp_path, Training(epochs=3))
    both.run([Stage(("a", "b", "c"), step, loser="b"), Stage(("c", "b"), 4, loser="c"), Stage(("b", "c"))])
    assert both.found.lost == 2 * (not library.runs_the_loop)


def test_training_that_a_script_ends_early_goes_on_from_a_checkpoint_and_ends_where_it_does_alone(
    library: Library, tmp_path: Path
) -> None:
    """Of the validations by which it ends, some were before the checkpoint, and before ranks came."""
    both = Comparison(library, tmp_path, Training(epochs=9, ends_early=True))
    end = max(both.expected.losses)
    assert end < 9 * STEPS_PER_EPOCH
    begin = checkpoint_after(end - 6, spec(epochs=9), both.script, tmp_path / "checkpoints")
    assert max(both.found.losses) == end - 6
    both.run([Stage(("a", "b"), 2), Stage(("b", "c"), 1, victim="b"), Stage(("c", "d"))], begin)


def test_a_spec_of_another_training_is_refused_with_both_numbers(library: Library, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"global_batch": 16}, f"batch_size={BATCH}, and the trainer's spec has global_batch: 16"),
        ({"epochs": 2}, "epochs=6, and the trainer's spec has epochs: 2"),
    ]
    if library.runs_the_loop:
        refused.append(({"batch_schedule": [[1, 18]]}, "batch_schedule"))
    for changes, message in refused:
        token = HOST.set(RankHost(spec(**changes), turns_alone, lambda: None))
        try:
            with pytest.raises(SessionError, match=message):
                library.script(Training(), Told(), tmp_path)(None)
        finally:
            HOST.reset(token)
