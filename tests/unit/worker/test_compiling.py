"""A compiled forward, without the minutes that torch's own code generator takes."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from oakum_worker.parallel.data import GradientReducer
from oakum_worker.step.compiling import compile_forward
from oakum_worker.task import Task
from training_ranks import build_task


class Backend:
    """Runs graphs as they are; counts them and their runs."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph(*args)

        return run


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    counting = Backend()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    yield counting
    torch.compiler.reset()


def loss_of(task: Task, size: int) -> torch.Tensor:
    return task.loss(task.model, task.read(range(size)))


def test_one_graph_serves_every_share_and_nothing_is_compiled_later(backend: Backend) -> None:
    task = build_task()
    assert compile_forward(task, 8, contextlib.nullcontext) is None
    tried = backend.runs
    for size in (53, 8, 3, 2):
        loss_of(task, size).backward()
    assert (backend.graphs, backend.runs) == (1, tried + 4)


def test_the_tries_leave_nothing_behind_in_the_tasks_state(backend: Backend) -> None:
    task = build_task()
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1))
    plain_loss, task.extra_state = task.loss, {"average": average}
    task.model[0].bias.requires_grad_(False)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        model[0].bias.data.add_(1.0)
        average.n_averaged += 1
        return plain_loss(model, batch)

    task.loss = loss
    before = task.model[0].bias.clone()
    assert compile_forward(task, 8, contextlib.nullcontext) is None
    assert torch.equal(task.model[0].bias, before)
    assert average.n_averaged == 0


def test_what_was_not_tried_runs_uncompiled(backend: Backend) -> None:
    task = build_task()
    compile_forward(task, 8, contextlib.nullcontext)
    before = backend.graphs, backend.runs
    loss_of(task, 1).backward()
    task.model.eval()
    with torch.no_grad():
        task.model(torch.ones(4, 5, dtype=torch.float64))
    assert (backend.graphs, backend.runs) == before


def test_a_batch_whose_samples_lie_in_another_dimension_is_compiled_for_all_sizes_as_well(
    backend: Backend,
) -> None:
    task = build_task()
    task.loss = lambda model, batch: model(batch[0].T).square().mean()
    task.model = WithSamplesLast(task.model)
    assert compile_forward(task, 8, contextlib.nullcontext) is None
    graphs, tried = backend.graphs, backend.runs
    for size in (53, 8, 3, 2):
        loss_of(task, size).backward()
    assert (backend.graphs, backend.runs) == (graphs, tried + 4)


class WithSamplesLast(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs.T)


def test_a_compiled_model_has_the_same_losses_and_gradients_sent_as_ever(backend: Backend) -> None:
    compiled, plain = build_task(), build_task()
    compile_forward(compiled, 8, contextlib.nullcontext)
    tried = backend.runs
    found = []
    for task in (compiled, plain):
        reducer = GradientReducer(task.model)
        reducer.join(Alone(), 2)  # type: ignore[arg-type]
        reducer.begin(20, 20)
        reducer.backward(loss_of(task, 20), 20, last=True)
        found.append([reducer.finish().loss, *(parameter.grad for parameter in task.model.parameters())])
    torch.testing.assert_close(found[0], found[1])
    assert backend.runs == tried + 1


class Alone(torch.distributed.Work):
    """A group of two of which the other rank has no samples."""

    def allreduce(self, *_: Any) -> Alone:
        return self

    def wait(self, *_: Any) -> bool:
        return True


def test_trying_it_out_leaves_no_trace(backend: Backend) -> None:
    task, untouched = build_task(nn.BatchNorm1d(8)), build_task(nn.BatchNorm1d(8))
    compile_forward(task, 8, contextlib.nullcontext)
    torch.testing.assert_close(task.model.state_dict(), untouched.model.state_dict(), rtol=0, atol=0)
    assert list(task.model.state_dict()) == list(untouched.model.state_dict())
    assert [parameter.grad for parameter in task.model.parameters()] == [None] * 6
    assert type(task.model) is nn.Sequential


def test_a_copy_of_a_compiled_model_uses_its_own_weights(backend: Backend) -> None:
    task = build_task()
    compile_forward(task, 8, contextlib.nullcontext)
    inputs = torch.ones(3, 5, dtype=torch.float64)
    file = io.BytesIO()
    torch.save(task.model, file)
    file.seek(0)
    for twin in (copy.deepcopy(task.model), torch.load(file, weights_only=False)):
        for parameter in twin.parameters():
            parameter.data.zero_()
        assert not twin(inputs).any()
    assert task.model(inputs).any()


def test_where_compiling_fails_the_model_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no C++ compiler\nlong story")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fail))
    task, untouched = build_task(nn.BatchNorm1d(8)), build_task(nn.BatchNorm1d(8))
    reason = compile_forward(task, 8, contextlib.nullcontext)
    assert reason is not None
    assert reason.startswith("the model runs uncompiled: ")
    assert "no C++ compiler" in reason
    assert "\n" not in reason
    assert "forward" not in vars(task.model)
    torch.testing.assert_close(task.model.state_dict(), untouched.model.state_dict(), rtol=0, atol=0)
    assert loss_of(task, 5) == loss_of(untouched, 5)
