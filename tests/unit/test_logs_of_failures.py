"""A failed test tells what its processes have logged last, in few lines."""

from __future__ import annotations

import os
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
