"""What is read of the logs that users' code may have put in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api_under_test import SPEC
from oakum_service.api.logs import read_log
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_worker.fragment.config_files import ARRAY_NAME, FragmentArray


def lines(sessions: Sessions, folder: Path, tail: int = 100) -> list[str]:
    with sessions.begin() as session:
        if session.get(Trainer, "t") is None:
            session.add(Trainer(id="t", name="digits", spec=SPEC, state="running", submitted_at=0.0))
            session.flush()
            session.add(Fragment(id="f", trainer_id="t", node="n1", state=FragmentState.LIVE, launched_at=0.0))
            session.flush()
        return read_log(session, folder, "t", tail)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "f").mkdir()
    return tmp_path / "f" / "7_0_log.out"


def test_the_last_lines_are_read_with_their_node(sessions: Sessions, tmp_path: Path, log: Path) -> None:
    log.write_text("one\ntwo\nthree\n")
    assert lines(sessions, tmp_path, tail=2) == ["n1 | two", "n1 | three"]


@pytest.mark.timeout(60)
def test_a_fifo_keeps_nobody_waiting(sessions: Sessions, tmp_path: Path, log: Path) -> None:
    os.mkfifo(log)
    assert lines(sessions, tmp_path) == []


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_shows_nothing_of_another_file(sessions: Sessions, tmp_path: Path, log: Path, link: object) -> None:
    (tmp_path / "admin.token").write_text("s3cret\n")
    assert callable(link)
    link(tmp_path / "admin.token", log)
    assert lines(sessions, tmp_path) == []


class TestArrays:
    """The log of a job array's task is in the array's folder, and the fragment's folder has a link to it."""

    NAME = "71_1_0_log.out"

    @pytest.fixture
    def array(self, tmp_path: Path, log: Path) -> Path:
        folder = tmp_path / "array"
        folder.mkdir()
        write_list(folder, "e", "f")
        (folder / self.NAME).write_text("hello\n")
        (log.parent / self.NAME).symlink_to(Path("..", "array", self.NAME))
        return folder

    def test_the_tasks_own_log_is_read(self, sessions: Sessions, tmp_path: Path, array: Path) -> None:
        assert lines(sessions, tmp_path) == ["n1 | hello"]

    def test_a_long_list_of_fragments_is_read_whole(self, sessions: Sessions, tmp_path: Path, array: Path) -> None:
        write_list(array, "e", "f", *(f"{number:036}" for number in range(10_000)))
        assert lines(sessions, tmp_path) == ["n1 | hello"]

    @pytest.mark.parametrize(
        "fragments", [("f", "e"), ("e",), ()], ids=["another task's", "no such task's", "an empty list"]
    )
    def test_a_log_of_another_task_is_not(
        self, sessions: Sessions, tmp_path: Path, array: Path, fragments: tuple[str, ...]
    ) -> None:
        write_list(array, *fragments)
        assert lines(sessions, tmp_path) == []

    def test_what_is_no_array_is_not(self, sessions: Sessions, tmp_path: Path, array: Path) -> None:
        (array / "array.json").unlink()
        assert lines(sessions, tmp_path) == []

    @pytest.mark.parametrize("target", ["../../array/{}", "../array/other_log.out", "{}", "/array/{}"])
    def test_a_link_to_elsewhere_is_not(
        self, sessions: Sessions, tmp_path: Path, array: Path, target: str
    ) -> None:
        (array / "other_log.out").write_text("s3cret\n")
        (tmp_path / "f" / self.NAME).unlink()
        (tmp_path / "f" / self.NAME).symlink_to(target.format(self.NAME))
        assert lines(sessions, tmp_path) == []

    def test_a_link_in_the_arrays_folder_is_not_followed(
        self, sessions: Sessions, tmp_path: Path, array: Path
    ) -> None:
        (array / self.NAME).rename(tmp_path / "s3cret")
        (array / self.NAME).symlink_to(tmp_path / "s3cret")
        assert lines(sessions, tmp_path) == []


def write_list(folder: Path, *fragments: str) -> None:
    array = FragmentArray(fragments=fragments, addresses={})
    (folder / ARRAY_NAME).write_text(array.model_dump_json())


def test_a_folder_that_is_a_link_is_not_entered(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "1_log.out").write_text("s3cret\n")
    (tmp_path / "f").symlink_to(tmp_path / "private")
    assert lines(sessions, tmp_path) == []


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]52;c;aGk=\x1b\\after", "after"),
        ("\x1bcreset \x1b(Bcharset", "reset charset"),
        ("bell\x07 back\x08space nul\x00 c1\x9b31m", "bell backspace nul c131m"),
        ("a\tb é 漢", "a\tb é 漢"),
    ],
)
def test_a_terminal_gets_nothing_to_obey(
    sessions: Sessions, tmp_path: Path, log: Path, written: str, shown: str
) -> None:
    log.write_text(written + "\n", encoding="utf-8")
    assert lines(sessions, tmp_path) == [f"n1 | {shown}"]
