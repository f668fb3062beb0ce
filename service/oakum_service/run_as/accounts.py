"""Calls the launcher, which runs Oakum's programs in users' Unix accounts."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

from oakum_service.errors import AccountUnavailable, Forbidden
from oakum_service.run_as.launcher import REFUSED

_ANSWER_WITHIN_S = 120.0
_REMEMBERED_S = 60.0


class UserAccounts:
    """The Unix accounts that users' code runs in; a user's account has the user's name. Safe for threads."""

    def __init__(self, launcher: Path) -> None:
        """`launcher` is where the launcher was installed, on this machine and on the nodes."""
        self.launcher = launcher
        self._lock = threading.Lock()
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

    def run(self, program: str, user: str, given: bytes = b"") -> bytes:
        """Run one of the launcher's programs in the user's account; returns what it writes to stdout.

        Raises `Forbidden` where the launcher refuses the account, and `AccountUnavailable` where the program
        cannot be started, fails, or takes longer than two minutes.
        """
        command = ["sudo", "-n", "--", str(self.launcher), program, "--account", user]
        try:
            done = subprocess.run(command, input=given, capture_output=True, timeout=_ANSWER_WITHIN_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AccountUnavailable(f"{self.launcher} could not be run in {user}'s account: {error}") from error
        if done.returncode == 0:
            return done.stdout
        told = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        if done.returncode == REFUSED:
            raise Forbidden(
                f"trainers' code runs in their users' Unix accounts here, and {user!r} has none for that "
                f"({told.removeprefix('run-as: ')}): use a token whose name is that of your account"
            )
        raise AccountUnavailable(
            f"{self.launcher} could not be run in {user}'s account ({told or f'status {done.returncode}'}): see "
            "`oakum run-as check`"
        )
