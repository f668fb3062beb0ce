"""E-mail through this machine's `sendmail`, with a fixed argument list and a fixed envelope sender."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

from oakum_service.documents.notice import Notice
from oakum_service.errors import NoticeFailed

_MOST_ERROR = 300


def message_of(notice: Notice, url: str, sender: str, recipient: str) -> EmailMessage:
    """The e-mail for a notice; `url` is where the dashboard is.

    Users' free text goes into the body only. The subject holds the trainer's name, which is a plain label without
    line breaks.
    """
    mail = EmailMessage()
    mail["From"], mail["To"] = sender, recipient
    mail["Subject"] = f"[Oakum] {notice.trainer}: {notice.event}"
    mail["Date"] = format_datetime(datetime.fromtimestamp(notice.at, UTC))
    mail["Message-ID"] = f"<{notice.id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    lines = [notice.message, "", f"Trainer  {notice.trainer} of {notice.user or 'nobody known'}"]
    if notice.step is not None:
        lines.append(f"Step     {notice.step}")
    mail.set_content("\n".join([*lines, f"See      {url}", ""]))
    return mail


def hand_over(mail: EmailMessage, sendmail: Path, sender: str, timeout_s: float) -> None:
    """Pass the e-mail to `sendmail`, which reads the recipient from its header. Raises `NoticeFailed` if
    `sendmail` does not accept it within `timeout_s` seconds."""
    try:
        process = subprocess.Popen(
            [str(sendmail), "-t", "-i", "-f", sender],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        raise NoticeFailed(f"{sendmail} cannot be run: {error.strerror}") from error
    try:
        _, errors = process.communicate(mail.as_bytes(), timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise NoticeFailed(f"{sendmail} did not end within {timeout_s:g} s") from error
    if process.returncode:
        message = errors.decode(errors="replace").strip()[:_MOST_ERROR] or "it says nothing"
        raise NoticeFailed(f"{sendmail} ended with status {process.returncode}: {message}")
