"""Forward passes in which ranks exchange data are never repeated: the other ranks would not take part."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cells import each
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.strategies.assembly import passes_are_collective
from training_ranks import build_spec, build_task, mean_squared_error

COLLECTIVE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gathers": ({"gathers": True}, {}),
    "synchronised": ({}, {"parallel": {"batch_norm": "synchronised"}}),
    "sharded": ({}, {"parallel": {"data": "sharded"}}),
}


def passes_of_a_step_that_begins_to_draw(attributes: dict[str, Any], options: dict[str, Any]) -> int:
    """Number of forward passes of the second step, the first one in which the loss draws a random number."""
    passes: list[int] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        passes.append(1)
        drawn = torch.rand(()).item() if len(passes) > 1 else 0.0
        return mean_squared_error(model, batch) + 0.0 * drawn

    task = build_task(loss=loss)
    for name, value in attributes.items():
        setattr(task, name, value)
    loop = TrainingLoop(task, build_spec(**options))
    loop.step()
    before = len(passes)
    loop.step()
    return len(passes) - before


@each(("attributes", "options"), COLLECTIVE.values(), ids=COLLECTIVE)
def test_a_pass_in_which_ranks_exchange_data_is_taken_once(
    attributes: dict[str, Any], options: dict[str, Any]
) -> None:
    assert passes_of_a_step_that_begins_to_draw(attributes, options) == 1


def test_a_pass_of_a_rank_alone_is_repeated_with_each_samples_own_numbers() -> None:
    """Or the tests above would show nothing."""
    assert passes_of_a_step_that_begins_to_draw({}, {}) == 2


def test_tensor_grids_exchange_data_within_passes() -> None:
    for stages in ({}, {"pipeline": {}}):
        assert passes_are_collective(build_task(), build_spec(parallel={"tensor": {"square": 2}, **stages}))
    assert not passes_are_collective(build_task(), build_spec())
