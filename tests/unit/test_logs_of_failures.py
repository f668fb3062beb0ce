"""A failed test tells what its processes have logged last, in few lines."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from logs_of_failures import LINES_OF_EACH, MOST_LOGS, last_lines_of_logs


def test_the_logs_written_last_are_shown_with_their_last_lines(tmp_path: Path) -> None:
    for number in range(MOST_LOGS + 2):
        log = tmp_path / "fragments" / f"f{number}" / "rank.log"
        log.parent.mkdir(parents=True)
        log.write_text("".join(f"line {line}\n" for line in range(number * 10)))
        os.utime(log, (number, number))
    shown = list(last_lines_of_logs(tmp_path))
    assert [title for title, _ in shown] == [f"End of fragments/f{number}/rank.log" for number in range(2, 8)]
    _, text = shown[-1]
    assert text.splitlines()[0] == f"[the last {LINES_OF_EACH} of 70 lines]"
    assert text.splitlines()[-1] == "line 69"


def test_logs_that_go_while_they_are_looked_at_are_left_out(tmp_path: Path) -> None:
    for number in range(3):
        log = tmp_path / f"f{number}" / "rank.log"
        log.parent.mkdir()
        log.write_text("a line")
        os.utime(log, (number, number))
    # Unlike a name that does not exist, one that is too long is an error for Path.is_file, too.
    (tmp_path / "unreadable.log").symlink_to("x" * 256)
    shown = last_lines_of_logs(tmp_path)
    assert next(shown) == ("End of f0/rank.log", "a line")
    shutil.rmtree(tmp_path / "f1")
    assert list(shown) == [("End of f2/rank.log", "a line")]
