"""A checkpoint's weights as one file, read back by the format's own library."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import shutil
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from cells import each
from oakum_client.cli.export import export
from oakum_worker.checkpoint import dcp_files, manifest
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.export import SUFFIXES, export_weights
from oakum_worker.errors import CheckpointError

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool)


def state() -> dict[str, torch.Tensor]:
    """Every type and unusual shapes; two names of one tensor, as tied layers have."""
    tied = torch.arange(12.0).reshape(3, 4)
    return {
        **{str(kind).removeprefix("torch."): torch.arange(-3, 3).to(kind) for kind in TYPES},
        "number": torch.tensor(2.5),
        "nothing": torch.empty(0, 7),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "embedding.weight": tied,
        "head.weight": tied,
    }


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A folder of checkpoints of steps 3 and 7, with moments and an extra state beside the weights."""
    folder = tmp_path / "checkpoints"
    keeper = DurableCheckpoints(folder, keep=2)
    for step in (3, 7):
        model = {name: tensor + step if tensor.is_floating_point() else tensor for name, tensor in state().items()}
        moments = {"0": {"exp_avg": torch.full((5,), 9.0)}}
        keeper.save({"model": {**model, "_extra_state": {"calls": 4}}, "optimizer": moments}, step)
    return folder


def expected(step: int) -> dict[str, torch.Tensor]:
    return {name: tensor + step if tensor.is_floating_point() else tensor for name, tensor in state().items()}


def assert_same(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_the_formats_own_library_reads_every_type_and_shape(checkpoints: Path, tmp_path: Path) -> None:
    done = export_weights(checkpoints, tmp_path / "model.safetensors")
    wanted = expected(7)
    assert_same(load_file(tmp_path / "model.safetensors"), wanted)
    assert (done.step, done.num_tensors) == (7, len(wanted))
    assert done.num_bytes == sum(tensor.nbytes for tensor in wanted.values())
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "oakum_step": "7"}


def test_an_older_checkpoint_is_named_by_its_folder(checkpoints: Path, tmp_path: Path) -> None:
    assert export_weights(checkpoints / "step-3", tmp_path / "model.safetensors").step == 3
    assert_same(load_file(tmp_path / "model.safetensors"), expected(3))


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_a_state_dict_needs_no_pickle_to_be_read(checkpoints: Path, tmp_path: Path, suffix: str) -> None:
    export_weights(checkpoints, tmp_path / f"model{suffix}")
    assert_same(torch.load(tmp_path / f"model{suffix}", weights_only=True), expected(7))


def test_no_more_than_one_tensor_is_read_at_a_time_and_progress_is_told(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, sizes = dcp_files.read_tensors, []

    def note(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        sizes.append(len(tensors))
        read(folder, tensors)

    monkeypatch.setattr(dcp_files, "read_tensors", note)
    told: list[tuple[int, int]] = []
    done = export_weights(
        checkpoints, tmp_path / "model.safetensors", lambda now, total: told.append((now, total))
    )
    assert set(sizes) == {1}
    assert told[-1] == (done.num_bytes, done.num_bytes)
    assert told == sorted(told)
    assert len(told) == done.num_tensors


def test_the_commands_help_names_every_suffix() -> None:
    output = get_type_hints(export, include_extras=True)["output"].__metadata__[0].help
    assert [suffix for suffix in SUFFIXES if suffix not in output] == []


@pytest.mark.parametrize("name", ["model.bin", "model"])
def test_another_format_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"expected a name that ends in \.safetensors, \.pt, \.pth"):
        export_weights(tmp_path / "nowhere", tmp_path / name)


def test_a_file_that_cannot_be_finished_leaves_the_one_before(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"the one before")

    def full(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp_files, "read_tensors", full)
    with pytest.raises(CheckpointError, match=r"cannot be exported to .*No space left on device"):
        export_weights(checkpoints, file)
    assert file.read_bytes() == b"the one before"
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "model.safetensors"}


def test_a_damaged_checkpoint_is_not_exported(checkpoints: Path, tmp_path: Path) -> None:
    data = next(path for path in (checkpoints / "step-7").iterdir() if path.suffix == ".distcp")
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    assert export_weights(checkpoints, tmp_path / "model.safetensors").step == 3
    with pytest.raises(CheckpointError, match="is not whole"):
        export_weights(checkpoints / "step-7", tmp_path / "other.safetensors")
    assert not (tmp_path / "other.safetensors").exists()


def test_what_may_depend_on_the_nodes_that_trained_it_says_so_for_ever(checkpoints: Path, tmp_path: Path) -> None:
    export_weights(checkpoints, tmp_path / "model.safetensors", is_exact=False)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "oakum_step": "7", "oakum_exact": "false"}


class _Runs:
    """What, unpickled, makes a file named by the test."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._file),)


def _with_code(index: Any, file: Path) -> Any:
    index.planner_data = _Runs(file)
    return index


def _code_alone(index: Any, file: Path) -> Any:
    return _Runs(file)


def _something_else(index: Any, file: Path) -> Any:
    return index.state_dict_metadata


class _Attribute:
    """What, unpickled, is an attribute of something."""

    def __init__(self, of: Any, name: str) -> None:
        self._of, self._name = of, name

    def __reduce__(self) -> Any:
        return getattr, (self._of, self._name)


def _with_an_attribute(index: Any, file: Path) -> Any:
    index.planner_data = _Attribute(type(index), "__init__")
    return index


def _with_a_file_elsewhere(index: Any, file: Path) -> Any:
    info = next(iter(index.storage_data.values()))
    info.relative_path = f"../step-3/{info.relative_path}"
    return index


@each(
    ("change", "told"),
    [
        (_with_code, "posix.mkdir in it, which is no part of one"),
        (_code_alone, "posix.mkdir in it, which is no part of one"),
        (_with_an_attribute, "an attribute '__init__' in it"),
        (_with_a_file_elsewhere, "the index names '../step-3/"),
        (_something_else, "the index is a dict"),
    ],
    ids=lambda one: one.__name__ if callable(one) else None,
)
def test_what_a_user_has_put_into_an_index_is_not_run_for_whoever_exports(
    checkpoints: Path, tmp_path: Path, change: Any, told: str
) -> None:
    folder = shutil.copytree(checkpoints / "step-7", tmp_path / change.__name__ / "step-7")
    index = folder / ".metadata"
    with index.open("rb") as file:
        before = pickle.load(file)  # noqa: S301 - written just now
    index.write_bytes(pickle.dumps(change(before, tmp_path / "made")))
    (folder / "manifest.json").unlink()
    manifest.seal(folder, 7)
    with pytest.raises(CheckpointError, match=told):
        export_weights(folder, tmp_path / "model.safetensors")
    assert not (tmp_path / "made").exists()


def test_an_index_of_another_version_of_python_is_read(checkpoints: Path, tmp_path: Path) -> None:
    """Some pickle a member of an enumeration by its name, others by its value."""
    folder = checkpoints / "step-7"
    with (folder / ".metadata").open("rb") as file:
        index = pickle.load(file)  # noqa: S301 - written just now
    (folder / ".metadata").write_bytes(_pickled_by_names(index))
    (folder / "manifest.json").unlink()
    manifest.seal(folder, 7)
    export_weights(folder, tmp_path / "model.safetensors")
    assert_same(load_file(tmp_path / "model.safetensors"), expected(7))


def _pickled_by_names(index: Any) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file)
    (some, *_) = index.state_dict_metadata.values()
    (kind,) = {type(part) for part in some.properties.__getstate__() if isinstance(part, Enum)}
    pickler.dispatch_table = copyreg.dispatch_table | {kind: lambda member: (getattr, (kind, member.name))}
    pickler.dump(index)
    return file.getvalue()
