"""Models that begin from a file of weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

from cells import each
from oakum_worker.errors import TaskError
from oakum_worker.task import build_task as build_from_spec
from oakum_worker.weight_files import begin_from_file
from tied_task import build_tied_task
from training_ranks import build_model, build_spec, build_task


def same(model: nn.Module, other: nn.Module) -> bool:
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def write_safetensors(model: nn.Module, path: Path) -> None:
    save_file(model.state_dict(), path)


def write_state_dict(model: nn.Module, path: Path) -> None:
    torch.save(model.state_dict(), path)


WRITERS = pytest.mark.parametrize(
    ("write", "name"),
    [(write_safetensors, "m.safetensors"), (write_state_dict, "m.pt"), (write_state_dict, "m.bin")],
)


@WRITERS
def test_the_task_begins_with_the_files_weights(
    tmp_path: Path, write: Callable[[nn.Module, Path], None], name: str
) -> None:
    given = build_model(nn.BatchNorm1d(8), seed=5)
    with torch.no_grad():
        given(torch.randn(7, 5).double())  # for the running statistics
    write(given, tmp_path / name)
    before = (tmp_path / name).read_bytes()
    spec = build_spec(initial=name, workdir=str(tmp_path))
    task = build_from_spec(lambda: build_task(nn.BatchNorm1d(8)), spec)
    assert same(task.model, given)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.zero_()
    assert (tmp_path / name).read_bytes() == before


def test_weights_take_the_models_types_and_keep_their_own_without_loss(tmp_path: Path) -> None:
    model = nn.ParameterDict({"one": torch.randn(3).half(), "two": torch.randn(3).bfloat16()})
    model["none"], model["scalar"] = torch.empty(0, 4), torch.tensor(2.0)
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    wide = nn.ParameterDict({name: torch.zeros_like(value, dtype=torch.float64) for name, value in model.items()})
    begin_from_file(wide, tmp_path / "m.safetensors")
    for name, value in model.items():
        assert torch.equal(wide[name], value.double())


def test_a_tied_weight_may_be_written_under_one_of_its_names(tmp_path: Path) -> None:
    given, model = build_tied_task().model, build_tied_task().model
    with torch.no_grad():
        for parameter in given.parameters():
            parameter.add_(1.0)
    once = dict(given.named_parameters()) | dict(given.named_buffers())
    assert len(once) < len(given.state_dict())
    save_file({name: value.detach() for name, value in once.items()}, tmp_path / "m.safetensors")
    begin_from_file(model, tmp_path / "m.safetensors")
    assert same(model, given)


def described(entry: dict[str, Any], data: bytes = bytes(8)) -> bytes:
    header = json.dumps({"0.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | entry}).encode()
    return len(header).to_bytes(8, "little") + header + data


@each(
    ("name", "content", "told"),
    [
        ("m.safetensors", b"", "cut off, or no safetensors file"),
        ("m.safetensors", b"\xff" * 40, "cut off, or no safetensors file"),
        ("m.safetensors", (3).to_bytes(8, "little") + b"{{{", "cannot be read as a file of weights"),
        ("m.safetensors", described({"data_offsets": [0, 16]}), "do not fit its shape"),
        ("m.safetensors", described({"data_offsets": [-8, 0]}), "do not fit its shape"),
        ("m.safetensors", described({"shape": [-2, -1]}), "do not fit its shape"),
        ("m.safetensors", described({}, b""), "do not fit its shape"),
        ("m.safetensors", described({"dtype": "F8"}), "has the type F8, which is not read here"),
        ("m.safetensors", described({"shape": None}), "cannot be read as a file of weights"),
        ("m.pt", b"nothing of torch's", "cannot be read as a file of weights"),
    ],
)
def test_a_file_that_is_none_of_weights_is_told(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=told):
        begin_from_file(build_model(), tmp_path / name)


class Evil:
    def __reduce__(self) -> Any:
        return print, ("run",)


def test_code_in_a_file_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"0.weight": Evil()}, tmp_path / "m.pt")
    with pytest.raises(TaskError, match="cannot be read as a file of weights"):
        begin_from_file(build_model(), tmp_path / "m.pt")
    assert "run" not in capsys.readouterr().out


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"m.pt cannot be read: No such file or directory; correct the spec"):
        begin_from_file(build_model(), tmp_path / "m.pt")


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (lambda own: {"epoch": 3, "model": own}, "holds a dict with 'epoch', 'model' in it, not tensors by name"),
        (lambda own: [1], "holds a list, not tensors by name: save model.state_dict"),
        (lambda own: {f"module.{name}": value for name, value in own.items()}, "DistributedDataParallel writes"),
    ],
)
def test_a_state_dict_within_something_else_is_told(tmp_path: Path, state: Any, told: str) -> None:
    torch.save(state(build_model().state_dict()), tmp_path / "m.pt")
    with pytest.raises(TaskError, match=told):
        begin_from_file(build_model(), tmp_path / "m.pt")


def test_what_is_missing_unexpected_or_misshaped_is_named_and_the_model_stays(tmp_path: Path) -> None:
    own = build_model(seed=5).state_dict()
    given = {name: value for name, value in own.items() if name != "0.bias"}
    given |= {"9.weight": torch.ones(2), "2.weight": torch.ones(3, 8)}
    save_file(given, tmp_path / "m.safetensors")
    model, before = build_model(), build_model()
    told = (
        r"missing: 0.bias; unexpected: 9.weight; other shapes: 2.weight is \(3, 8\) in the file and \(2, 8\) in "
        r"the model. Build the same model"
    )
    with pytest.raises(TaskError, match=told):
        begin_from_file(model, tmp_path / "m.safetensors")
    assert same(model, before)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"initial": "model.pkl"}, "is not a file of weights: expected a name that ends in .safetensors"),
        ({"initial": "m.pt", "script": "train.py", "entrypoint": ""}, "initial does not go with a script"),
    ],
)
def test_what_cannot_be_initial_is_told(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        build_spec(**fields)
