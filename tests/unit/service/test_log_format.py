"""The log: one JSON object a line, with what the work was about and without secrets."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from oakum_service.logs.fields import about
from oakum_service.logs.format import JsonFormatter, TextFormatter, begin_log, without_secrets

TOKEN = "oakum-" + "Ab3_-xyZ" * 4


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a logger of its own writes as JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log = logging.getLogger("oakum.test")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    yield stream
    log.removeHandler(handler)
    log.propagate = True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_line_whatever_it_says() -> None:
    """Not logged: what pytest shows of a log has to be UTF-8."""
    text = "two\nlines, a \x1b[31mcolour and half a pair \ud800: %d"
    record = logging.LogRecord("oakum.test", logging.WARNING, __file__, 1, text, (7,), None)
    (formatted,) = JsonFormatter().format(record).splitlines()
    line = json.loads(formatted)
    assert line["message"] == "two\nlines, a \x1b[31mcolour and half a pair \ud800: 7"
    assert (line["level"], line["logger"]) == ("warning", "oakum.test")
    assert line["time"].endswith("+00:00")


def test_an_exception_is_a_field(written: io.StringIO) -> None:
    try:
        raise ValueError(f"{TOKEN} is not welcome")
    except ValueError:
        logging.getLogger("oakum.test").exception("a turn failed")
    (line,) = lines(written)
    assert line["message"] == "a turn failed"
    assert line["exception"].endswith("ValueError: oakum-*** is not welcome")


def test_lines_have_the_ids_of_what_they_are_about_and_no_longer_than_that(written: io.StringIO) -> None:
    log = logging.getLogger("oakum.test")
    with about(plan=7):
        with about(trainer="t1", fragment="f1"):
            log.info("launched", extra={"fields": {"event": "fragment.launched"}})
        log.info("carried out")
    log.info("idle")
    always = {"time", "level", "logger", "message"}
    ids = [{name: line[name] for name in line.keys() - always} for line in lines(written)]
    assert ids == [
        {"plan": "7", "trainer": "t1", "fragment": "f1", "event": "fragment.launched"},
        {"plan": "7"},
        {},
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"with {TOKEN}, it", "with oakum-***, it"),
        ("postgresql://oakum:s3cret@db/oakum fails", "postgresql://oakum:***@db/oakum fails"),
        ("Authorization: Bearer eyJhbGciOi.J9.abcdef01", "Authorization: Bearer ***"),
        ("oakum-hooks.service on http://head:8470/v1", "oakum-hooks.service on http://head:8470/v1"),
        ("trainer oakum-night-run-of-july", "trainer oakum-night-run-of-july"),
    ],
)
def test_secrets_are_left_out_in_both_forms(text: str, shown: str, written: io.StringIO) -> None:
    logging.getLogger("oakum.test").info("%s", text)
    assert [line["message"] for line in lines(written)] == [shown] == [without_secrets(text)]
    record = logging.LogRecord("oakum", logging.INFO, "", 0, text, (), None)
    assert TextFormatter("%(message)s").format(record) == shown


def test_an_error_of_a_thread_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    begin_log(as_json=True, level=logging.WARNING, console=Console(stderr=True))
    try:
        error = RuntimeError("the disk is gone")
        threading.excepthook(threading.ExceptHookArgs((RuntimeError, error, None, threading.current_thread())))
    finally:
        logging.captureWarnings(False)
        sys.stderr.flush()
    line = json.loads(capsys.readouterr().err)
    assert line["message"] == "thread MainThread has ended with an error"
    assert line["exception"] == "RuntimeError: the disk is gone"
