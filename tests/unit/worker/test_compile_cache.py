"""Where ranks keep compiled code, which is run: nowhere that another account may write to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cells import each
from oakum_worker.fragment.compile_cache import VARIABLE, compile_cache


def _is_missing(usual: Path) -> None:
    pass


def _is_torchs(usual: Path) -> None:
    usual.mkdir(mode=0o755)


def _is_open(usual: Path) -> None:
    usual.mkdir()
    usual.chmod(0o777)


def _is_a_link(usual: Path) -> None:
    usual.symlink_to(usual.parent)


def _is_a_file(usual: Path) -> None:
    usual.touch()


@each(
    ("there", "is_used"),
    [(_is_missing, True), (_is_torchs, True), (_is_open, False), (_is_a_link, False), (_is_a_file, False)],
    ids=lambda one: one.__name__ if callable(one) else None,
)
def test_compiled_code_lies_where_this_account_alone_writes(
    there: Callable[[Path], None], is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / there.__name__
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setenv("LOGNAME", "alice")
    usual = temporary / "torchinductor_alice"
    there(usual)
    assert compile_cache({}, tmp_path / "f1") == (usual if is_used else tmp_path / "f1" / "torchinductor")
    assert compile_cache({VARIABLE: "/mine"}, tmp_path / "f1") == Path("/mine")


def test_another_accounts_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = os.geteuid()
    assert compile_cache({}, tmp_path / "f1").parent == tmp_path
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert compile_cache({}, tmp_path / "f1") == tmp_path / "f1" / "torchinductor"
