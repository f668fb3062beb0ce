"""Checkpoints that are whole or are not there."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oakum_worker.checkpoint import durable
from oakum_worker.checkpoint.durable import Checkpoint, DurableCheckpoints
from oakum_worker.checkpoint.manifest import FORMAT
from oakum_worker.errors import CheckpointError
from training_ranks import build_loop, digest


def state_of(step: int) -> dict[str, Any]:
    return {"weight": torch.full((1000,), float(step)), "cursor": {"step": step}}


def filled(folder: Path, *steps: int, keep: int = 10) -> DurableCheckpoints:
    checkpoints = DurableCheckpoints(folder, keep)
    for step in steps:
        checkpoints.save(state_of(step), step)
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Context in which writing a file beyond this size fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_training_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    before, after = build_loop(nn.BatchNorm1d(8)), build_loop(nn.BatchNorm1d(8), seed=5)
    for _ in range(5):
        before.step()
    checkpoints = DurableCheckpoints(tmp_path / "not" / "there yet", keep=2)
    checkpoints.save(before.state.state_dict(), before.step_count)

    newest = checkpoints.newest()
    assert newest is not None
    state = after.state.state_dict()
    checkpoints.load(newest, state)
    after.state.load_state_dict(state)
    assert digest(after) == digest(before)
    assert before.step().loss == after.step().loss


def test_loading_does_not_touch_the_tensors_it_replaces(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 1)
    state = state_of(7)
    live = state["weight"]
    checkpoints.load(Checkpoint(tmp_path / "step-1", 1), state)
    assert live[0] == 7
    assert state["weight"][0] == 1


def test_without_checkpoints_there_is_no_newest(tmp_path: Path) -> None:
    assert DurableCheckpoints(tmp_path, 1).newest() is None
    assert DurableCheckpoints(tmp_path / "not there", 1).newest() is None


def test_the_newest_is_that_of_the_highest_step(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 9, 10, 2)
    assert checkpoints.newest() == Checkpoint(tmp_path / "step-10", 10)
    assert checkpoints.newest_step == 10
    assert checkpoints.skipped == []


def flip_a_bit(folder: Path) -> None:
    data = folder / "__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def write_another_format(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda folder: os.truncate(folder / "__0_0.distcp", 100), "has 100 bytes instead of"),
    "one bit flipped": (flip_a_bit, "__0_0.distcp does not have the content it was written with"),
    "a file missing": (lambda folder: (folder / "state.json").unlink(), "state.json is missing"),
    "manifest missing": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    "manifest torn": (lambda folder: os.truncate(folder / "manifest.json", 40), "is not a manifest"),
    "manifest empty": (lambda folder: os.truncate(folder / "manifest.json", 0), "is not a manifest"),
    "of a later format": (write_another_format, f"has format 99; this worker reads formats up to {FORMAT}:"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    filled(tmp_path, 1, 2, 3)
    damage(tmp_path / "step-3")
    checkpoints = DurableCheckpoints(tmp_path, keep=10)
    newest = checkpoints.newest()
    assert newest == Checkpoint(tmp_path / "step-2", 2)
    (sentence,) = checkpoints.skipped
    assert sentence.startswith("checkpoint of step 3 is not usable: ")
    assert reason in sentence
    state: dict[str, Any] = {}
    checkpoints.load(newest, state)
    assert state["cursor"] == {"step": 2}


def test_what_is_not_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step-notes").mkdir()
    (tmp_path / "readme.txt").write_text("mine")
    filled(tmp_path, 1, 2, keep=1)
    assert names(tmp_path) == ["readme.txt", "step-2", "step-notes"]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2, 3, 4, keep=2)
    assert names(tmp_path) == ["step-3", "step-4"]


def test_a_checkpoint_found_damaged_takes_no_place_of_a_whole_one(tmp_path: Path) -> None:
    filled(tmp_path, 10, 20)
    flip_a_bit(tmp_path / "step-20")
    checkpoints = DurableCheckpoints(tmp_path, keep=2)
    checkpoints.newest()
    checkpoints.save(state_of(15), 15)
    assert names(tmp_path) == ["step-10", "step-15"]


def test_the_one_just_written_stays_though_a_later_step_is_there(tmp_path: Path) -> None:
    filled(tmp_path, 20)
    checkpoints = filled(tmp_path, 15, keep=1)
    assert names(tmp_path) == ["step-15"]
    assert checkpoints.newest() == Checkpoint(tmp_path / "step-15", 15)


def test_a_checkpoint_that_is_being_read_is_not_removed(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    with (tmp_path / "step-1" / "manifest.json").open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        filled(tmp_path, 2, keep=1)
        assert names(tmp_path) == ["step-1", "step-2"]
    filled(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step-3"]


def test_a_checkpoint_removed_before_it_is_loaded_leaves_the_state_alone(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 1)
    newest = checkpoints.newest()
    assert newest is not None
    filled(tmp_path, 2, keep=1)
    state = state_of(7)
    with pytest.raises(CheckpointError, match="look for the newest checkpoint again"):
        checkpoints.load(newest, state)
    assert state["cursor"] == {"step": 7}


def test_saving_a_step_twice_leaves_the_first(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 1)
    written = (tmp_path / "step-1" / "manifest.json").stat().st_mtime_ns
    checkpoints.save(state_of(1), 1)
    assert (tmp_path / "step-1" / "manifest.json").stat().st_mtime_ns == written


def test_saving_a_step_again_replaces_a_damaged_one(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 1)
    flip_a_bit(tmp_path / "step-1")
    checkpoints.save(state_of(1), 1)
    assert checkpoints.newest() == Checkpoint(tmp_path / "step-1", 1)
    assert names(tmp_path) == ["step-1"]


def test_what_dead_writers_left_is_neither_found_nor_kept(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    leftover = tmp_path / f"step-9.tmp-{'0' * 32}"
    (tmp_path / "step-1").rename(leftover)
    checkpoints = DurableCheckpoints(tmp_path, keep=2)
    assert checkpoints.newest() is None
    checkpoints.save(state_of(2), 2)
    assert names(tmp_path) == ["step-2"]


def test_a_full_disk_leaves_no_debris_and_the_checkpoint_before(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 1)
    with file_size_limit(2000), pytest.raises(CheckpointError, match="checkpoints cannot be written") as caught:
        checkpoints.save(state_of(2), 2)
    assert str(tmp_path) in str(caught.value)
    assert "File too large; free space there" in str(caught.value)
    assert names(tmp_path) == ["step-1"]
    assert checkpoints.newest_step == 1


@pytest.mark.parametrize("function", ["fsync", "rename", "mkdir"])
def test_a_disk_that_fails_at_any_stage_leaves_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    checkpoints = filled(tmp_path, 1)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(os, function, fail)
        with pytest.raises(CheckpointError, match="Read-only file system"):
            checkpoints.save(state_of(2), 2)
    assert names(tmp_path) == ["step-1"]
    assert checkpoints.newest() == Checkpoint(tmp_path / "step-1", 1)


def test_a_folder_that_cannot_be_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checkpoints = DurableCheckpoints(tmp_path / "file" / "checkpoints", keep=1)
    with pytest.raises(CheckpointError, match="Not a directory"):
        checkpoints.save(state_of(1), 1)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoints.newest()


def test_in_the_background_the_state_of_the_call_is_written(tmp_path: Path) -> None:
    checkpoints = DurableCheckpoints(tmp_path, keep=2)
    state = state_of(1)
    assert checkpoints.save_in_background(state, 1)
    state["weight"].zero_()
    checkpoints.wait()
    assert checkpoints.newest_step == 1
    checkpoints.load(Checkpoint(tmp_path / "step-1", 1), state)
    assert state["weight"][0] == 1


def test_while_one_is_being_written_no_other_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, may_end = durable._write_files, threading.Event()
    monkeypatch.setattr(durable, "_write_files", lambda *args: (may_end.wait(10), written(*args)))
    checkpoints = DurableCheckpoints(tmp_path, keep=9)
    assert checkpoints.save_in_background(state_of(1), 1)
    assert not checkpoints.save_in_background(state_of(2), 2)
    may_end.set()
    checkpoints.wait()
    assert checkpoints.save_in_background(state_of(3), 3)
    checkpoints.wait()
    assert names(tmp_path) == ["step-1", "step-3"]


def test_a_failure_in_the_background_is_told_with_the_next_one_which_is_written(tmp_path: Path) -> None:
    checkpoints = DurableCheckpoints(tmp_path, keep=9)
    with file_size_limit(2000):
        checkpoints.save_in_background(state_of(1), 1)
        checkpoints.wait()
    with pytest.raises(CheckpointError, match="checkpoints cannot be written"):
        checkpoints.save_in_background(state_of(2), 2)
    checkpoints.wait()
    assert names(tmp_path) == ["step-2"]
