"""The form of a durable checkpoint is changed in one place, and what earlier versions wrote stays readable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from cells import each
from oakum_worker.checkpoint import document, manifest
from oakum_worker.checkpoint.adoption import adopt
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.export import export_weights
from oakum_worker.checkpoint.model_folder import FILES, FILES_PART, export_model_folder
from oakum_worker.checkpoint.sharded import ShardedCheckpoints
from oakum_worker.checkpoint.weights import load_weights
from oakum_worker.parallel.holdings import Holdings, Place


def written(folder: Path) -> Path:
    """A folder with the checkpoint of step 3 of a model, with Hugging Face's files beside it."""
    parts = {FILES_PART: {FILES: json.dumps({"config.json": "{}"})}}
    DurableCheckpoints(folder, keep=1).save({"model": nn.Linear(3, 2).state_dict(), "parts": parts}, 3)
    return folder


def goes_on(folder: Path) -> None:
    checkpoints = DurableCheckpoints(folder, keep=1)
    newest = checkpoints.newest()
    assert newest is not None, checkpoints.skipped
    state: dict[str, dict[str, torch.Tensor]] = {}
    checkpoints.load(newest, state)
    assert state["model"].keys() == {"weight", "bias"}


def goes_on_sharded(folder: Path) -> None:
    shared = ShardedCheckpoints(DurableCheckpoints(folder, keep=1), 60, pytest.fail)
    (stored,) = shared.stored(Place(Holdings.one_each(1), 0), lambda told: [told])
    assert stored.document["model"].keys() == {"weight", "bias"}


def is_loaded(folder: Path) -> None:
    assert load_weights(folder, nn.Linear(3, 2)) == 3


def is_exported(folder: Path) -> None:
    assert export_weights(folder, folder.with_name("model.safetensors")).num_tensors == 2


def is_exported_as_a_folder(folder: Path) -> None:
    export_model_folder(folder, folder.with_name("model"))
    assert folder.with_name("model").joinpath("config.json").read_text(encoding="utf-8") == "{}"


def begins_another_trainer(folder: Path) -> None:
    assert adopt(folder, folder.with_name("adopted"), "another") == 3
    goes_on(folder.with_name("adopted"))


READERS = [goes_on, goes_on_sharded, is_loaded, is_exported, is_exported_as_a_folder, begins_another_trainer]


@each("read", READERS, ids=lambda read: read.__name__)
def test_a_checkpoint_of_an_earlier_format_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], None]
) -> None:
    folder = written(tmp_path / read.__name__ / "checkpoints")
    with monkeypatch.context() as later:
        later.setattr(manifest, "FORMAT", manifest.FORMAT + 1)
        read(folder)


@each("read", READERS, ids=lambda read: read.__name__)
def test_whoever_reads_a_checkpoint_finds_its_document_by_one_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], None]
) -> None:
    with monkeypatch.context() as later:
        later.setattr(document, "_NAME", "elsewhere.json")
        folder = written(tmp_path / read.__name__ / "checkpoints")
        assert not list(folder.rglob("state.json"))
        read(folder)
