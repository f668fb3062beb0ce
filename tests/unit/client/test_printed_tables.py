"""Tables where output is no terminal: nothing cut, nothing wrapped; and `COLUMNS` where it is set."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from answering_service import HOLES, NODES, PLAN, Service, trainer
from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_client.cli.output import console, table
from oakum_client.cli.whole_lines import WholeLines
from oakum_service.api.schemas.ledger import LedgerEntry

load_commands()
SENTENCE = "It has every idle node that it may have, and the next one would be worth more elsewhere. " * 4


def printed(name: str = "n" * 400) -> list[str]:
    out = io.StringIO()
    screen = WholeLines(file=out, markup=False, highlight=False, emoji=False)
    listing = table("NAME", "SIZE", "WHY", right=("SIZE",))
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


LONG = "transformer-of-the-language-group-with-a-long-name-0123456789"
HOUR = {name: 12_345.678 for name in LedgerEntry.model_fields if name.endswith("_node_h")}
ENTRY = {
    "month": "2026-11",
    "user": LONG,
    "foreground_delay_s": 4_321.0,
    "ends": {"time limit": 9, "lost": 2},
    **HOUR,
}
LISTINGS: tuple[tuple[list[str], str, dict[str, Any], list[str]], ...] = (
    (
        ["ps"],
        "/v1/trainers",
        {"trainers": [trainer(LONG, samples_per_s=1_234_567.0, step=4799, submitted_at=0.0, condition=SENTENCE)]},
        ["running", "2", "1-8", "100%", "1,234,567", SENTENCE.split()[0]],
    ),
    (["nodes"], "/v1/nodes", NODES, ["n1", "hole", "digits", "(training)", "foreground"]),
    (["holes"], "/v1/holes", HOLES, ["n1", "still", "idle"]),
    (["plan"], "/v1/plans/current", PLAN, ["digits", "2", "n1,", "n2", "No", "more", "are", "idle."]),
    (
        ["ledger"],
        "/v1/ledger",
        {"from_month": "2026-11", "to_month": "2026-11", "entries": [ENTRY]},
        ["12,345.68"],
    ),
    (["ps", "-o", "wide"], "/v1/trainers", {"trainers": [trainer(reason=SENTENCE)]}, []),
    (["ledger", "-o", "wide"], "/v1/ledger", {"from_month": "a", "to_month": "b", "entries": [ENTRY]}, []),
)


@pytest.mark.parametrize("columns", [80, 100, 120])
@each("command", LISTINGS, ids=lambda listing: " ".join(listing[0]))
def test_a_terminal_of_this_width_shows_all_of_a_listing(
    command: tuple[list[str], str, dict[str, Any], list[str]],
    columns: int,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, path, document, expected = command
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    service.documents["GET", path] = document
    assert run(words) == 0
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    missing = [word for word in expected if word not in shown.split()]
    assert not missing, shown


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
