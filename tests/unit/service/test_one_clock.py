"""What decides by the time, or writes it down, asks one clock: else a service in virtual time has two."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import oakum_service
from oakum_service import clock
from oakum_service.db import event_log
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import database_time
from oakum_service.db.models.events import EventRecord
from oakum_service.turn_clock import TurnClock

_SERVICE = Path(oakum_service.__file__).parent
_ROOMS = ("control", "db", "documents", "fragments", "notices", "orders", "schedulers/port.py", "turn_clock.py")
_WAITING_FOR_THE_MACHINE = {"db/patience.py", "db/stalls.py"}
"""They measure for how long a database does not answer, which passes in the machine's own time."""
_READINGS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "func": {"now", "current_timestamp", "localtimestamp"},
}


def modules() -> Iterator[Path]:
    for room in _ROOMS:
        path = _SERVICE / room
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def readings(source: str) -> list[str]:
    """Where the module reads a clock of its own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if node.attr in _READINGS.get(owner, ()):
                found.append(f"line {node.lineno}: {owner}.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"line {node.lineno}: {name.name}" for name in node.names if name.name in _READINGS["time"]]
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import time\nat = time.time()",
        "from time import monotonic",
        "import datetime\nat = datetime.datetime.now(datetime.UTC)",
        "def begin(clock_s=time.monotonic): ...",
        "select(func.now())",
    ],
)
def test_a_clock_of_ones_own_is_found(source: str) -> None:
    assert len(readings(source)) == 1


def test_no_module_that_decides_or_records_has_a_clock_of_its_own() -> None:
    names = {path.relative_to(_SERVICE).as_posix(): path for path in modules()}
    found = {name: readings(path.read_text(encoding="utf-8")) for name, path in names.items()}
    own = {name: lines for name, lines in found.items() if lines}
    assert own.keys() == _WAITING_FOR_THE_MACHINE, own


def test_another_clock_tells_the_time_to_the_whole_service(sessions: Sessions) -> None:
    class Noon:
        def now(self) -> float:
            return 43_200.0

        def steady_s(self) -> float:
            return 7.0

    turns = TurnClock()
    with clock.told_by(Noon()):
        with sessions.begin() as session:
            event_log.record(session, "node.hole", "n1", "is idle")
            asked = database_time(session)
        turns.note_turn()
        assert turns.age_s == 0.0
    with sessions.begin() as session:
        (event,) = session.query(EventRecord).all()
        assert (event.at, asked) == (43_200.0, 43_200.0)
        assert database_time(session) > 1e9
