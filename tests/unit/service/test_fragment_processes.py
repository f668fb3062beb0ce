"""Which processes of this machine belong to fragments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oakum_service.schedulers import fragment_processes


def test_a_process_of_another_account_is_no_fragments_whatever_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be signalled: the embedded cluster did not start, and its node was never free."""
    shown = ["submitit.core._submit", f"{tmp_path}/f1"]
    command = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()", *shown]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = fragment_processes.find(tmp_path)
        assert [one.pid for one in found["f1"]] == [process.pid]
        monkeypatch.setattr(os, "getuid", lambda: 1 + process.pid)
        assert not fragment_processes.find(tmp_path)
