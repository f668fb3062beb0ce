"""The service's log: lines for people, or one JSON object a line. Neither shows tokens or passwords."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from datetime import UTC, datetime

from rich.console import Console
from rich.logging import RichHandler

from oakum_service.logs.fields import present_fields
from oakum_service.logs.plain_text import plain

_SECRETS = (
    (re.compile(r"\boakum-[\w-]{32,}"), "oakum-***"),
    (re.compile(r"(://[^\s:/@]*:)[^\s@]+@"), r"\1***@"),
    (re.compile(r"(?i)\b(bearer) [\w.~+/=-]{16,}"), r"\1 ***"),
)
_log = logging.getLogger("oakum")


def without_secrets(text: str) -> str:
    """The text with tokens, credentials and the passwords in addresses replaced by asterisks."""
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


class TextFormatter(logging.Formatter):
    """Formats a record's message, and its exception after it, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's text, in which no terminal finds anything to obey."""
        return plain(without_secrets(super().format(record)))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: `time` (UTC), `level`, `logger`, `message`, the fields that the record
    and the present work have (`event`, `subject`, `trainer`, `fragment`, `plan`, `request`), and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, without an end of line."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **present_fields(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Not within the JSON text: an escaped character might hide a secret's end from the patterns.
        return json.dumps({name: without_secrets(str(value)) for name, value in line.items()})


def begin_log(*, as_json: bool, level: int, console: Console) -> None:
    """Have every record from `level` on written to `console`, or to standard error as JSON. With JSON, warnings
    of Python's and threads' errors are records as well, so that every line is one."""
    handler: logging.Handler
    if as_json:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        logging.captureWarnings(True)
        threading.excepthook = _log_thread_error
    else:
        handler = RichHandler(console=console, show_path=False, omit_repeated_times=False, log_time_format="[%X]")
        handler.setFormatter(TextFormatter("%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _log_thread_error(error: threading.ExceptHookArgs) -> None:
    name = "a thread" if error.thread is None else f"thread {error.thread.name}"
    if error.exc_value is not None:
        _log.error("%s has ended with an error", name, exc_info=error.exc_value)
