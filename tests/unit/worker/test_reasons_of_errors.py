"""What the operating system and libraries say reaches a person in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from oakum_worker.errors import reason_of


def test_an_operating_systems_reason_comes_without_its_number_and_path(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Errno") as raised:
        (tmp_path / "none").read_text(encoding="utf-8")
    assert reason_of(raised.value) == "No such file or directory"


def test_bytes_that_are_no_text_are_called_that() -> None:
    with pytest.raises(UnicodeDecodeError) as raised:
        b"\xff".decode()
    assert reason_of(raised.value) == "it is no UTF-8 text"
    assert reason_of(ValueError("more")) == "more"
