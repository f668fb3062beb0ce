"""Writers wait for each other without keeping anybody from reading, and in the order in which they came."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import TimeoutError as NoTurn
from sqlalchemy.orm import sessionmaker

from oakum_service.db.engine import open_engine, open_readers, open_reporters, open_sessions
from oakum_service.db.writer_turns import WriterTurns, take_turns
from waiting import DEADLINE_S, wait_until

_WRITERS = 60
"""More than the pool has connections."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_engine(f"sqlite:///{tmp_path}/turns.db")
    with opened.begin() as connection:
        connection.execute(text("CREATE TABLE written (number INTEGER)"))
    yield opened
    opened.dispose()


def test_writers_that_wait_keep_nobody_from_reading_and_write_in_order(engine: Engine) -> None:
    sessions, readers, reporters = open_sessions(engine), open_readers(engine), open_reporters(engine)
    turns = engine.get_execution_options()["writer_turns"]

    def write(number: int) -> None:
        with (sessions, reporters)[number % 2].begin() as session:
            session.execute(text("INSERT INTO written VALUES (:number)"), {"number": number})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(_WRITERS)]
    with sessions.begin() as first:
        first.execute(text("SELECT 1"))
        for number, thread in enumerate(threads):
            thread.start()
            wait_until("the writer waits", lambda number=number: turns.num_waiting == number + 1)
        with readers.begin() as reader:
            assert reader.execute(text("SELECT count(*) FROM written")).scalar_one() == 0
    for thread in threads:
        thread.join(DEADLINE_S)
    with readers.begin() as reader:
        written = reader.execute(text("SELECT number FROM written ORDER BY rowid")).scalars().all()
    assert written == list(range(_WRITERS))


def test_a_writer_that_waits_in_vain_is_told_and_leaves_the_turn_to_others(engine: Engine) -> None:
    impatient = sessionmaker(engine)
    turns = WriterTurns(0.01)
    take_turns(impatient, turns)
    turns.take()
    with pytest.raises(NoTurn, match=r"kept the database busy for 0\.01 s"), impatient.begin():
        pass
    assert turns.num_waiting == 0
    turns.end()
    with impatient.begin() as session:
        assert session.execute(text("SELECT 1")).scalar_one() == 1
    with pytest.raises(ZeroDivisionError), impatient.begin():
        raise ZeroDivisionError
    turns.take()  # a transaction that failed has given it up
