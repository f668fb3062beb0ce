"""What is read of a program in a user's account, whose answer the user may hold up or write."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cells import each
from oakum_service.errors import AccountUnavailable, Busy
from oakum_service.run_as import accounts
from oakum_service.run_as.accounts import UserAccounts
from oakum_service.run_as.answers import NoAnswerError, answer_of, begin
from waiting import DEADLINE_S, wait_until


def test_an_answer_is_what_was_written_until_the_end() -> None:
    code = "import sys; sys.stderr.write('a fault'); print(len(sys.stdin.read())); sys.exit(3)"
    # More than a pipe holds.
    answer = answer_of(begin([sys.executable, "-c", code], b"x" * 1_000_000), DEADLINE_S)
    assert (answer.status, answer.stdout, answer.stderr) == (3, b"1000000\n", b"a fault")


@each(
    ("code", "within_s", "told"),
    [
        ("while True: print('x' * 10_000, flush=True)", DEADLINE_S, "writes more than"),
        (
            "import sys\nwhile True: print('x' * 10_000, flush=True, file=sys.stderr)",
            DEADLINE_S,
            "writes more than",
        ),
        ("import time; time.sleep(1000)", 0.1, "not ended within 0.1 s"),
        ("import os, time; os.close(1); os.close(2); time.sleep(1000)", 0.5, "timed out|not ended"),
    ],
)
def test_nobody_waits_for_a_program_that_does_not_end_or_reads_all_that_it_writes(
    code: str, within_s: float, told: str
) -> None:
    process = begin([sys.executable, "-c", code], b"")
    with pytest.raises(NoAnswerError, match=told):
        answer_of(process, within_s)
    wait_until("it has ended", lambda: process.poll() is not None)


def test_an_account_in_which_a_process_was_given_up_is_asked_again_once_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)"
    stubborn = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert stubborn.stdout is not None
    assert stubborn.stdout.read(2) == b"1\n"
    monkeypatch.setattr(accounts, "begin", lambda command, given: stubborn)
    asked = UserAccounts(Path("/launcher"), within_s=1.0)
    with pytest.raises(AccountUnavailable, match="gave no answer in alice's account: it has not ended within"):
        asked.run("checkpoints", "alice")
    with pytest.raises(AccountUnavailable, match=f"process {stubborn.pid} in alice's account was asked before"):
        asked.run("checkpoints", "alice")
    stubborn.kill()
    stubborn.wait(DEADLINE_S)
    monkeypatch.setattr(accounts, "begin", lambda command, given: begin(["echo", "yes"], given))
    assert asked.run("checkpoints", "alice") == b"yes\n"


def test_of_many_requests_for_one_account_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps a thread, of which there are as many as requests that are answered at a time."""
    gate, begun = threading.Event(), threading.Semaphore(0)

    def held_up(command: list[str], given: bytes) -> subprocess.Popen[bytes]:
        if "alice" in command:
            begun.release()
            assert gate.wait(DEADLINE_S)
        return begin(["true"], given)

    monkeypatch.setattr(accounts, "begin", held_up)
    asked = UserAccounts(Path("/launcher"))
    waiting = [threading.Thread(target=asked.run, args=("checkpoints", "alice")) for _ in range(3)]
    for thread in waiting:
        thread.start()
        assert begun.acquire(timeout=DEADLINE_S)
    with pytest.raises(Busy, match="3 requests wait for alice's account already"):
        asked.run("checkpoints", "alice")
    assert asked.run("checkpoints", "bob") == b""
    gate.set()
    for thread in waiting:
        thread.join(DEADLINE_S)
    assert asked.run("checkpoints", "alice") == b""
