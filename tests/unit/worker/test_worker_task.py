"""What a user is told when an entrypoint does not give a usable task."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from oakum_worker.errors import TaskError
from oakum_worker.task import Task, load_task
from training_ranks import build_spec

PREAMBLE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from oakum_worker.task import Task

class Lines(IterableDataset):
    def __iter__(self):
        return iter([(torch.ones(2),)] * 3)

class SizedLines(Lines):
    def __len__(self):
        return 3

class Stream(SizedLines):
    def samples(self, epoch, start):
        return iter([(torch.ones(2),)] * (3 - start))

class EmptyStream(SizedLines):
    def samples(self, epoch, start):
        return iter(())

class EndlessStream:
    def samples(self, epoch, start):
        return iter([(torch.ones(2),)] * 3)

def loss(model, batch):
    return model(batch[0]).mean()

def task(width=3, seed_of_data=0):
    model = nn.Linear(2, width)
    return Task(
        model=model,
        dataset=TensorDataset(torch.ones(5, 2)),
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
"""


@pytest.fixture(autouse=True)
def _import_path_is_put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("user_"):
            del sys.modules[name]


def load(folder: Path, source: str = "", entrypoint: str = "user_code:task", **fields: Any) -> Task:
    (folder / "user_code.py").write_text(PREAMBLE + source)
    return load_task(build_spec(entrypoint=entrypoint, workdir=str(folder), **fields))


def complaint(folder: Path, source: str = "", **fields: Any) -> str:
    with pytest.raises(TaskError) as caught:
        load(folder, source, **fields)
    return str(caught.value)


def test_every_process_builds_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    first, again = load(tmp_path, seed=5), load(tmp_path, seed=5)
    other = load(tmp_path, seed=6)
    assert isinstance(first.model, torch.nn.Linear)
    assert torch.equal(first.model.weight, again.model.weight)  # type: ignore[arg-type]
    assert not torch.equal(first.model.weight, other.model.weight)  # type: ignore[arg-type]


def test_the_specs_arguments_reach_the_entrypoint(tmp_path: Path) -> None:
    assert load(tmp_path, arguments={"width": 7}).model.out_features == 7


def test_a_parameter_named_spec_is_given_the_trainer_spec(tmp_path: Path) -> None:
    source = "def sized(spec, extra=0):\n    return task(width=spec.epochs + extra)\n"
    loaded = load(tmp_path, source, entrypoint="user_code:sized", epochs=4, arguments={"extra": 2})
    assert loaded.model.out_features == 6


def test_the_workdir_comes_before_everything_else_on_the_import_path(tmp_path: Path) -> None:
    load(tmp_path)
    assert sys.path[0] == str(tmp_path)


def test_a_missing_module_names_the_workdir_and_the_import_path(tmp_path: Path) -> None:
    text = complaint(tmp_path, entrypoint="user_cod:task")
    assert "no module 'user_cod'" in text
    assert str(tmp_path) in text
    assert "PYTHONPATH" in text


def test_a_missing_workdir_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"workdir .*/nowhere is not a folder on this node"):
        load_task(build_spec(workdir=str(tmp_path / "nowhere")))


def test_a_missing_dependency_is_not_taken_for_a_missing_entrypoint(tmp_path: Path) -> None:
    text = complaint(tmp_path, "import user_dependency\n")
    assert "user_code imports 'user_dependency', which is not there: install it" in text


def test_an_error_while_importing_names_its_line(tmp_path: Path) -> None:
    text = complaint(tmp_path, "1 / 0\n")
    assert "importing user_code raised ZeroDivisionError" in text
    assert "user_code.py:" in text


def test_a_script_that_exits_when_imported_is_told_where_to_put_that(tmp_path: Path) -> None:
    assert "__main__" in complaint(tmp_path, "raise SystemExit(1)\n")


def test_a_misspelt_function_is_answered_with_similar_names(tmp_path: Path) -> None:
    assert complaint(tmp_path, entrypoint="user_code:tsak").endswith("did you mean 'task'?")


def test_an_entrypoint_that_is_no_function_is_told_so(tmp_path: Path) -> None:
    assert "is a int: name a function" in complaint(tmp_path, "task = 3\n")


def test_unknown_arguments_are_answered_with_the_signature(tmp_path: Path) -> None:
    text = complaint(tmp_path, arguments={"depth": 3})
    assert "unexpected keyword argument 'depth'" in text
    assert "(width=3, seed_of_data=0)" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("raise OSError('no data here')", "raised OSError: no data here"),
        ("return None", "returned None (is a `return` missing?)"),
        ("return 'a string'", "returned str object"),
        ("made.dataset = []", "data set (list) is empty"),
        ("made.dataset = iter([1])", "can only be iterated"),
        ("made.dataset = Lines()", "add __len__(), the number of samples of an epoch, and samples(epoch, start)"),
        ("made.dataset = SizedLines()", "where a rank's share does: add samples(epoch, start), which iterates"),
        ("made.dataset = EndlessStream()", "(EndlessStream) has no length: add __len__"),
        ("made.dataset = EmptyStream()", "has 3 samples, and its samples(0, 0) gives none"),
        ("made.dataset = DataLoader(made.dataset)", "is a DataLoader: give the data set in it"),
        ("made.dataset = 3", "data set (int) has no length"),
        ("made.dataset = [object()]", "first sample as a batch raised TypeError"),
        ("made.model = 3", "the task's model is a int"),
        ("made.model = nn.DataParallel(made.model)", "return the bare model: DataParallel"),
        ("made.model.requires_grad_(False)", "nothing to train"),
        ("made.model = nn.Linear(2, 3)", "2 parameters that are not the model's (shapes (3, 2), (3,))"),
        ("made.optimizer = None", "optimizer is a NoneType"),
        ("made.optimizer = torch.optim.LBFGS(made.model.parameters())", "LBFGS"),
        ("made.scheduler = 'cosine'", "scheduler is a str: give one of torch.optim.lr_scheduler"),
        (
            "made.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(made.optimizer)",
            "step it by the loss in `on_step_end`",
        ),
        ("made.scheduler, made.scheduler_by_epoch = None, True", "scheduler_by_epoch and no scheduler"),
        ("made.dataset = [DataLoader(made.dataset)] * 2", "is a list of 2 data sets: give one"),
        ("made.dataset = {'few': made.dataset, 'many': Lines()}", "is a dict of 2 data sets"),
        ("made.loss = lambda model, batch, step: 0", "loss needs 'step' besides model and batch"),
        ("made.scheduler = torch.optim.lr_scheduler.ConstantLR(other)", "built with another optimizer"),
        ("made.loss = 'mse'", "the task's loss is a str"),
        ("made.evaluate = 'accuracy'", "evaluate is a str"),
        ("made.evaluate_every_epochs = 0", "evaluate_every_epochs is 0"),
        ("made.extra_state = made.model", "extra_state is a Linear: give a mapping"),
        ("made.extra_state = {1: nn.ReLU()}", "extra_state has the key 1: use names"),
        ("made.extra_state = {'ema': 3}", "extra_state['ema'], a int, has no state_dict and no load_state_dict"),
        (
            "made.extra_state = {'model': made.model}",
            "extra_state['model'] is the task's own Linear: leave it out",
        ),
    ],
)
def test_an_unusable_task_is_told_what_to_change(tmp_path: Path, change: str, expected: str) -> None:
    source = (
        "def broken():\n"
        "    made = task()\n"
        "    other = torch.optim.SGD(made.model.parameters(), lr=1.0)\n"
        f"    {change}\n"
        "    return made\n"
    )
    text = complaint(tmp_path, source, entrypoint="user_code:broken")
    assert text.startswith("entrypoint user_code:broken")
    assert expected in text


def test_a_stream_of_samples_and_state_of_the_users_own_are_accepted(tmp_path: Path) -> None:
    source = (
        "def streamed():\n"
        "    made = task()\n"
        "    made.dataset = Stream()\n"
        "    made.extra_state = {'average': torch.optim.swa_utils.AveragedModel(made.model)}\n"
        "    return made\n"
    )
    loaded = load(tmp_path, source, entrypoint="user_code:streamed")
    assert loaded.read([0, 1])[0].shape == (2, 2)
    assert [name for name, _ in loaded.extra_state.items()] == ["average"]


def test_a_data_set_that_reads_many_at_once_is_asked_once() -> None:
    class Many:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("asked for a single sample")

        def __getitems__(self, indices: list[int]) -> list[float]:
            return [float(index) for index in indices]

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    task = Task(model=model, dataset=Many(), loss=lambda m, b: b.mean(), optimizer=optimizer)
    assert task.read([4, 2]).tolist() == [4.0, 2.0]
