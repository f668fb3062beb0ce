"""Pipeline trainers as a whole: what the spec asks for beside the pipeline, and what it asks of the pipeline."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from oakum_worker.chain import Chain
from oakum_worker.task import Task
from oakum_worker.trainer import TrainingLoop
from pipeline_loops import train_stages
from training_ranks import Points, build_spec


class Labelled(Points):
    """Points of four classes."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:  # type: ignore[override]
        return super().__getitem__(index)[0], index % 4


def build_classifier() -> Task:
    torch.manual_seed(4)
    layers = [nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)]
    model = nn.Sequential(*layers).double()
    chain = Chain(list(model), lambda batch: batch[0], lambda output, batch: F.cross_entropy(output, batch[1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9, weight_decay=0.01)
    return Task(model=model, dataset=Labelled(), loss=chain, optimizer=optimizer, chain=chain)


STEPS = 7 + 4
"""An epoch of 53 samples in batches of 8, and most of one in batches of 12."""


@pytest.mark.parametrize("schedule", ["1f1b", "chimera"])
def test_lars_smoothed_labels_and_other_batches_go_through_stages(schedule: str) -> None:
    """Each changes the losses, so that none of them can be left out on both sides."""
    options: dict[str, Any] = {
        "lars": {"trust_coefficient": 0.02},
        "label_smoothing": 0.1,
        "batch_schedule": [[1, 12]],
    }
    alone = TrainingLoop(build_classifier(), build_spec(**options))
    expected = [alone.step().loss for _ in range(STEPS)]
    for left_out in options:
        others = {name: value for name, value in options.items() if name != left_out}
        other = TrainingLoop(build_classifier(), build_spec(**others))
        assert [other.step().loss for _ in range(STEPS)] != pytest.approx(expected, rel=1e-3)

    pipeline = {"stages": 4, "schedule": schedule, "micro_batch": 2}
    spec = build_spec(**options, parallel={"pipeline": pipeline})
    losses, loops = train_stages(build_classifier, spec, 4, STEPS)
    assert losses == pytest.approx(expected, rel=1e-9)
    whole = dict(alone.task.model.named_parameters())
    held = [(name, p) for loop in loops for name, p in loop.task.model.named_parameters() if not p.is_meta]
    assert {name for name, _ in held} == set(whole)
    for name, parameter in held:
        torch.testing.assert_close(parameter, whole[name], rtol=1e-9, atol=1e-12)
