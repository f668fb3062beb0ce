"""The best checkpoint and the early end of trainers whose state is divided among ranks that come, go and die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from evaluated_tasks import EVALUATE, evaluated_loop, evaluated_task, train_alone
from oakum_worker.chain import Chain
from oakum_worker.checkpoint.best import read_best
from oakum_worker.checkpoint.weights import load_weights
from oakum_worker.task import Task
from sharded_ranks import Act, Script, play
from training_ranks import build_model


def chained_task() -> Task:
    task = evaluated_task()
    layers = list(task.model.children())
    task.chain = Chain(
        layers=layers,
        inputs=lambda batch: batch[0],
        loss=lambda output, batch: nn.functional.mse_loss(output, batch[1]),
    )
    task.loss = task.chain
    return task


@pytest.mark.parametrize(
    "parallel",
    [
        {"data": "sharded"},
        pytest.param({"pipeline": {"stages": 2, "schedule": "1f1b", "micro_batch": 1}}, marks=pytest.mark.soak),
    ],
)
def test_losses_best_checkpoint_and_last_step_are_those_of_one_process(
    tmp_path: Path, parallel: dict[str, Any]
) -> None:
    alone = evaluated_loop(epochs=12)
    losses, errors = train_alone(alone)
    expected = alone.evaluations.best
    assert expected is not None
    assert expected.step > 6
    acts = (
        Act((0, 1), until=3),
        Act((0, 1, 2, 3), until=5, dies=(1,)),
        Act((0, 2), until=expected.step + 1),
        Act((2, 3, 0), until=10**6),
    )
    fields = {"parallel": parallel, "epochs": 12, "evaluate": EVALUATE, "checkpoint": {"hot_every_steps": 2}}
    task = chained_task if "pipeline" in parallel else evaluated_task
    outcomes = play(Script(acts, str(tmp_path), task, fields, finish=True, measured=False))
    alive = [outcome for outcome in outcomes if outcome is not None]
    found = {step: loss for outcome in alive for step, loss in outcome.losses}
    assert found == {step: pytest.approx(loss, rel=1e-9) for step, loss in enumerate(losses, 1)}
    told = {step: values["error"] for outcome in alive for step, values in outcome.metrics.items()}
    assert told == {step: pytest.approx(error, rel=1e-9) for step, error in errors.items()}

    best = read_best(tmp_path)
    assert best is not None
    assert (best.step, best.value) == (
        expected.step,
        pytest.approx(expected.value, rel=1e-9),
    )
    kept = {f"step-{expected.step}", f"step-{alone.step_count}"}
    assert kept <= {path.name for path in tmp_path.iterdir()}
    model = build_model()
    assert load_weights(tmp_path / f"step-{best.step}", model) == best.step
