"""Calls the launcher, which runs Oakum's programs in users' Unix accounts."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oakum_service.errors import AccountUnavailable, Busy, Forbidden
from oakum_service.run_as.answers import NoAnswerError, answer_of, begin
from oakum_service.run_as.launcher import REFUSED

_ANSWER_WITHIN_S = 120.0
_REMEMBERED_S = 60.0
_MOST_AT_ONCE = 3
"""Most requests that wait for one account. Each keeps a thread, of which all users' requests have 40."""


class UserAccounts:
    """The Unix accounts that users' code runs in; a user's account has the user's name. Safe for threads.

    Whatever runs in a user's account may take as long as the user likes: never call it within a transaction.
    """

    def __init__(self, launcher: Path, within_s: float = _ANSWER_WITHIN_S) -> None:
        """`launcher` is where the launcher was installed, on this machine and on the nodes; a program has to
        answer `within_s` seconds."""
        self.launcher = launcher
        self._within_s = within_s
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        """User -> requests that wait for the account."""
        self._given_up: dict[str, subprocess.Popen[bytes]] = {}
        """User -> a process in the account that has not answered in time, and may still run."""
        self._allowed: dict[str, float] = {}
        """User -> when the launcher has allowed it, in monotonic seconds."""

    def check(self, user: str) -> None:
        """Raise `Forbidden` where the launcher does not run the user's code, `AccountUnavailable` where it cannot
        be asked. What it allowed is remembered for a minute."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._allowed.get(user, -_REMEMBERED_S) < _REMEMBERED_S:
                return
        self.run("check", user)
        with self._lock:
            self._allowed = {one: at for one, at in self._allowed.items() if now_s - at < _REMEMBERED_S}
            self._allowed[user] = now_s

    def run(self, program: str, user: str, request: bytes = b"") -> bytes:
        """Run one of the launcher's programs in the user's account; returns what it writes to stdout.

        Raises `Forbidden` where the launcher refuses the account, `AccountUnavailable` where the program cannot
        be started, fails, or takes longer than two minutes, and `Busy` where three requests wait for the account.
        """
        command = ["sudo", "-n", "--", str(self.launcher), program, "--account", user]
        with self._place_for(user):
            try:
                process = begin(command, request)
            except OSError as error:
                raise AccountUnavailable(f"{self.launcher} could not be run: {error}") from error
            try:
                done = answer_of(process, self._within_s)
            except NoAnswerError as error:
                with self._lock:
                    self._given_up[user] = process
                raise AccountUnavailable(
                    f"{self.launcher} {program} gave no answer in {user}'s account: {error}"
                ) from error
        if done.status == 0:
            return done.stdout
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        if done.status == REFUSED:
            raise Forbidden(
                f"trainers' code runs in their users' Unix accounts here, and {user!r} has none for that "
                f"({last_line.removeprefix('run-as: ')}): use a token whose name is that of your account"
            )
        raise AccountUnavailable(
            f"{self.launcher} could not be run in {user}'s account ({last_line or f'status {done.status}'}): see "
            "`oakum run-as check`"
        )

    @contextmanager
    def _place_for(self, user: str) -> Iterator[None]:
        """Context of a request to the account. Raises `AccountUnavailable` while a process runs there that was
        given up: no user collects processes, and threads that wait for them."""
        with self._lock:
            before = self._given_up.get(user)
            if before is not None and before.poll() is None:
                raise AccountUnavailable(
                    f"process {before.pid} in {user}'s account was asked before and has not ended: end it, and "
                    "look at the account's checkpoints"
                )
            self._given_up.pop(user, None)
            if self._asked[user] >= _MOST_AT_ONCE:
                raise Busy(f"{_MOST_AT_ONCE} requests wait for {user}'s account already: try again in a moment")
            self._asked[user] += 1
        try:
            yield
        finally:
            with self._lock:
                self._asked[user] -= 1
                self._asked += Counter()  # forgets those for whom nobody waits
