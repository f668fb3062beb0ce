"""A script is rehearsed in copies of its process: they leave nothing behind, and end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oakum_worker.errors import SessionError, TrainingWarning
from oakum_worker.rehearsal import process_copy, script
from rehearsed_loops import STEPS, by_class, classifier, mean, train
from rehearsed_loops import one_thread_and_fresh_warnings as one_thread_and_fresh_warnings


def test_the_same_is_found_where_no_process_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    expected = train(mean, classifier(nn.Dropout(0.5)))
    monkeypatch.setattr(script, "can_fork", lambda: False)
    torch.manual_seed(0)
    assert train(mean, classifier(nn.Dropout(0.5))) == expected
    with pytest.raises(SessionError, match="no mean over samples"):
        train(by_class, classifier())


def test_the_same_is_found_where_copies_compute_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_copy, "_computes_gradients", lambda: False)
    assert len(train(mean, classifier())) == STEPS
    with pytest.raises(SessionError, match="no mean over samples"):
        train(by_class, classifier())


def test_copies_leave_nothing_behind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    written = (tmp_path / "log").open("w", encoding="utf-8", buffering=1)
    read = (tmp_path / "numbers").open("w+b", buffering=0)
    read.write(bytes(range(100)))
    read.seek(0)

    def body(session: Any, batch: Any, model: nn.Module) -> None:
        seen.append(len(batch[0]))
        print("a step", flush=True)
        written.write("a step\n")
        mean(session, batch, model)
        assert read.read(1) == bytes([len(seen) - 1])

    train(body, classifier())
    assert seen == [12, 12, 12, 4]
    assert capfd.readouterr().out == "a step\n" * STEPS
    assert (tmp_path / "log").read_text(encoding="utf-8") == "a step\n" * STEPS


def test_what_the_loop_raises_is_raised_once_by_the_loop_itself() -> None:
    raised: list[int] = []

    def body(session: Any, batch: Any, model: nn.Module) -> None:
        raised.append(os.getpid())
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train(body, classifier())
    assert raised == [os.getpid()]


def test_a_copy_that_does_not_end_is_ended_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "_PATIENCE_S", 0.2)
    own = os.getpid()

    def body(session: Any, batch: Any, model: nn.Module) -> None:
        if os.getpid() != own:
            time.sleep(600)
        by_class(session, batch, model)

    with pytest.warns(TrainingWarning, match=r"not rehearsed.* had not computed 12 samples after 0\.2 s"):
        assert len(train(body, classifier())) == STEPS


def test_a_copy_that_would_make_files_is_ended_before_it_does_and_told_of(tmp_path: Path) -> None:
    made: list[Path] = []

    def body(session: Any, batch: Any, model: nn.Module) -> None:
        made.append(tmp_path / f"step-{session.steps}")
        made[-1].mkdir()
        mean(session, batch, model)

    with pytest.warns(TrainingWarning, match=r"not rehearsed.* calls os\.mkdir before its step"):
        train(body, classifier())
    assert sorted(tmp_path.iterdir()) == made == [tmp_path / f"step-{number}" for number in range(STEPS)]


def test_a_copy_ends_with_its_parent() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        if isinstance(process_copy.fork(0.5), process_copy.Child):
            os.write(writing, b"the child's is cut off")
            time.sleep(600)
        os._exit(0)
    os.close(writing)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(reading, 1) == b""
    os.close(reading)
