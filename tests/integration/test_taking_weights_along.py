"""The weights of real checkpoints in plain models, as docs/trainer/checkpoints.md says: three lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model, save_model
from torch import nn

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.export import export_weights
from oakum_worker.checkpoint.weights import load_weights
from oakum_worker.errors import CheckpointError
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task, build_task
from pipeline_tasks import build_deep_task, build_transformer_task
from sharded_ranks import Act, Script, play
from tied_task import build_tied_task
from training_ranks import build_spec
from training_ranks import build_task as build_plain_task

STEPS = 5
DOCS = Path(__file__).parents[2] / "docs" / "trainer" / "checkpoints.md"
SHARDED: dict[str, Any] = {}
PIPELINE = {"parallel": {"pipeline": {"stages": 4, "schedule": "chimera", "micro_batch": 1}}}


def trained(build: Callable[[], Task]) -> nn.Module:
    """The model of a task that a single process has trained for `STEPS` steps."""
    loop = TrainingLoop(build(), build_spec())
    for _ in range(STEPS):
        loop.step()
    return loop.task.model


def as_documented(folder: Path, build_model: Callable[[], nn.Module]) -> nn.Module:
    """Runs the lines of the documentation, with another folder in them."""
    (lines,) = re.findall(r"```python\n(from oakum_worker.checkpoint.weights .*?)```", DOCS.read_text(), re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) == 3
    names: dict[str, Any] = {"build_model": build_model}
    exec(re.sub(r'"[^"]*checkpoints/[^"]*"', repr(str(folder)), lines), names)
    model: nn.Module = names["model"]
    return model


def assert_same(model: nn.Module, expected: nn.Module, tolerance: float) -> None:
    found, wanted = model.state_dict(), expected.state_dict()
    assert found.keys() == wanted.keys()
    # A buffer that counts forward passes counts those of micro-batches.
    for name, value in wanted.items() if not tolerance else expected.named_parameters():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=name)


def test_of_a_replicated_trainer(tmp_path: Path) -> None:
    loop = TrainingLoop(build_tied_task(), build_spec())
    for _ in range(STEPS):
        loop.step()
    DurableCheckpoints(tmp_path, keep=1).save(loop.state.state_dict(), loop.step_count)
    model = as_documented(tmp_path, lambda: build_tied_task().model)
    assert_same(model, loop.task.model, 0.0)


@pytest.mark.parametrize(
    ("build", "members", "spec"),
    [
        (build_tied_task, 3, SHARDED),
        (build_deep_task, 4, PIPELINE),
        (build_transformer_task, 4, PIPELINE),
    ],
    ids=["sharded", "pipeline", "pipeline with tied layers"],
)
def test_of_a_trainer_whose_ranks_each_have_a_part(
    tmp_path: Path, build: Callable[[], Task], members: int, spec: dict[str, Any]
) -> None:
    script = Script((Act(tuple(range(members)), STEPS),), str(tmp_path), build, spec, finish=True)
    play(script)
    assert_same(as_documented(tmp_path, lambda: build().model), trained(build), 1e-9)
    export_weights(tmp_path, tmp_path / "model.safetensors")
    model = build().model
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert_same(model, trained(build), 1e-9)


def test_a_model_in_other_types_takes_them_too(tmp_path: Path) -> None:
    loop = TrainingLoop(build_tied_task(), build_spec())
    DurableCheckpoints(tmp_path, keep=1).save(loop.state.state_dict(), 7)
    half = build_tied_task().model.half()
    assert load_weights(tmp_path / "step-7", half) == 7
    torch.testing.assert_close(half.blocks[0].weight, loop.task.model.blocks[0].weight.half())


def test_what_does_not_fit_is_named_and_the_model_stays(tmp_path: Path) -> None:
    loop = TrainingLoop(build_tied_task(), build_spec())
    DurableCheckpoints(tmp_path, keep=1).save(loop.state.state_dict(), 1)
    other = nn.Linear(3, 2)
    before = other.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"do not fit the model \(.*weight is not in the"):
        load_weights(tmp_path, other)
    assert torch.equal(other.weight, before)


def test_without_a_whole_checkpoint_it_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it has no checkpoint; `oakum show NAME` says where"):
        load_weights(tmp_path, nn.Linear(3, 2))
    loop = TrainingLoop(build_tied_task(), build_spec())
    DurableCheckpoints(tmp_path, keep=1).save(loop.state.state_dict(), 1)
    (tmp_path / "step-1" / "state.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "step-1"):
        with pytest.raises(CheckpointError, match=r"state.json"):
            load_weights(folder, nn.Linear(3, 2))


def begun_from(build: Callable[[], Task], file: Path) -> Task:
    """The task of a rank whose spec names the file as `initial`."""
    return build_task(build, build_spec(initial=str(file)))


@pytest.mark.parametrize(
    ("build", "parallel"),
    [
        (build_tied_task, {"data": "sharded"}),
        (build_deep_task, {"pipeline": {"stages": 2, "schedule": "1f1b", "micro_batch": 1}}),
        (build_plain_task, {"tensor": {"line": 2}}),
    ],
    ids=["sharded", "pipeline", "tensor"],
)
def test_a_trainer_begins_with_a_files_weights_however_they_are_spread(
    tmp_path: Path, build: Callable[[], Task], parallel: dict[str, Any]
) -> None:
    """Also where all that was trained is lost, and training begins anew."""
    file = tmp_path / "initial.safetensors"
    given = trained(build)
    save_model(given, str(file))
    alone = build()
    load_model(alone.model, file)
    loop = TrainingLoop(alone, build_spec())
    expected = {step: pytest.approx(loop.step().loss, rel=1e-9) for step in range(1, STEPS + 1)}
    acts = (Act((0, 1), until=2, dies=(0, 1)), Act((2, 3), until=STEPS))
    (tmp_path / "checkpoints").mkdir()
    fields = {"parallel": parallel, "checkpoint": {"hot_every_steps": 100}}
    script = Script(acts, str(tmp_path / "checkpoints"), partial(begun_from, build, file), fields, measured=False)
    found = {step: loss for outcome in play(script) if outcome for step, loss in outcome.losses}
    assert found == expected
