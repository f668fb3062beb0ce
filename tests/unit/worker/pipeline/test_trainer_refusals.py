"""What a pipeline trainer refuses: tasks that do not name what it needs, and steps that are void."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from oakum_worker.chain import Chain
from oakum_worker.errors import GroupError, TaskError
from oakum_worker.parallel import nccl, waiting
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from training_ranks import Points, build_spec, digest, mean_squared_error


def loop_of(layers: list[nn.Module] | None, pipeline: dict[str, Any] | None, *others: nn.Module) -> TrainingLoop:
    """A trainer whose chain has these layers, beside modules that it does not name; no chain if there are none."""
    model = nn.ModuleList([*(layers or [nn.Linear(5, 2)]), *others]).double()
    chain = None
    if layers is not None:
        chain = Chain(layers, lambda batch: batch[0], lambda output, batch: mse_loss(output, batch[1]))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    task = Task(model=model, dataset=Points(), loss=chain or mean_squared_error, optimizer=optimizer, chain=chain)
    return TrainingLoop(task, build_spec(parallel={"pipeline": pipeline}))


def test_a_task_has_to_name_its_layers() -> None:
    with pytest.raises(TaskError, match=r"the task does not name its layers: return Task\(\.\.\., chain="):
        loop_of(None, {"stages": 2})


def test_a_chain_without_layers_is_refused() -> None:
    with pytest.raises(TaskError, match=r"the task's chain has no layer: name the model's layers"):
        loop_of([], {"stages": 2})


def test_what_is_trained_has_to_belong_to_a_layer() -> None:
    layers: list[nn.Module] = [nn.Linear(5, 5), nn.Linear(5, 2)]
    with pytest.raises(
        TaskError, match=r"^2\.weight, 2\.bias, 3\.weight and others belong to no layer .* or freeze them$"
    ):
        loop_of(layers, {"stages": 2}, nn.Linear(2, 2), nn.Linear(2, 2))
    loop_of(layers, {"stages": 2}, nn.Linear(2, 2).requires_grad_(False)).step()


@pytest.mark.parametrize("pipeline", [None, {"stages": 2}])
def test_a_step_in_which_the_generation_was_declared_over_is_void_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, pipeline: dict[str, Any] | None
) -> None:
    loop = loop_of([nn.Sequential(nn.Linear(5, 2))], pipeline)
    monkeypatch.setattr(waiting._CONNECTIONS, "are_cut", lambda: True)
    monkeypatch.setattr(loop.ranks, "group", object())
    loop.step()  # on a CPU collectives that were cut raise errors themselves
    before = digest(loop)
    monkeypatch.setattr(loop.ranks, "device", torch.device("cuda"))
    monkeypatch.setattr(nccl, "synchronise", lambda device: None)
    with pytest.raises(GroupError, match="the service ended the generation during a step"):
        loop.step()
    assert (loop.step_count, digest(loop)) == (1, before)
