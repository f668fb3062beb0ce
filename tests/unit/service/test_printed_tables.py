"""Tables where output is no terminal: nothing cut, nothing wrapped; and `COLUMNS` where it is set."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from oakum_service.cli.output import console, table
from oakum_service.cli.whole_lines import WholeLines

SENTENCE = "It has every idle node that it may have, and the next one would be worth more elsewhere. " * 4


def printed(name: str = "n" * 400) -> list[str]:
    out = io.StringIO()
    screen = WholeLines(file=out, markup=False, highlight=False, emoji=False)
    listing = table("NAME", "SIZE", "WHY", right=("SIZE",), wrapping=("WHY",))
    listing.add_row(Text(name), "12", Text(SENTENCE.strip()))
    screen.print(listing)
    screen.print(SENTENCE.strip())
    return out.getvalue().splitlines()


def test_without_a_terminal_each_row_is_one_whole_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    header, row, prose = printed()
    assert header.split() == ["NAME", "SIZE", "WHY"]
    assert row.split(maxsplit=2) == ["n" * 400, "12", SENTENCE.strip()]
    assert prose == SENTENCE.strip()


@pytest.mark.parametrize("columns", [60, 100])
def test_columns_wrap_sentences_and_no_row(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    _, row, *prose = printed()
    assert row.split(maxsplit=2) == ["n" * 400, "12", SENTENCE.strip()]
    assert max(map(len, prose)) <= columns
    assert " ".join(prose) == SENTENCE.strip()


@pytest.mark.parametrize("columns", ["", "wide", "0"])
def test_columns_that_are_no_number_do_not_count(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert len(printed()) == 3


def test_a_terminal_keeps_its_width_which_columns_overrules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "72")
    screen = console()
    assert (type(screen), screen.width) == (Console, 72)


def test_benchmarks_print_their_tables_so_too() -> None:
    """A console of their own would cut tables at 80 columns in a pipe."""
    files = sorted((Path(__file__).parents[3] / "bench").glob("*.py"))
    own = {
        file.name: found
        for file in files
        if (found := [call for call in re.findall(r"\bConsole\(.*?\)", file.read_text()) if "stderr" not in call])
    }
    assert files
    assert own == {}
