"""Random changes of membership in a row, by the benchmark that makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes import kill_all
from running_service import processes_of
from waiting import DEADLINE_S

SOAK = Path(__file__).resolve().parents[2] / "bench" / "soak.py"

pytestmark = [pytest.mark.timeout(1500), pytest.mark.soak]


@pytest.mark.parametrize("num_changes", [8, 60])
def test_training_takes_random_changes_of_membership_and_leaves_nothing_behind(
    tmp_path: Path, num_changes: int
) -> None:
    """Resizes, foreground jobs, kills, ranks and nodes that hang or crawl; losses are compared in the end."""
    found = tmp_path / "soak.json"
    command = [sys.executable, str(SOAK), "--changes", str(num_changes), "--seed", "5", "--settling", "0.2"]
    command += ["--deadline-s", f"{DEADLINE_S:g}", "--json", str(found)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    try:
        soak = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    finally:
        kill_all(processes_of(tmp_path))  # its service and ranks, where it was not let end
    outcome = json.loads(found.read_text(encoding="utf-8"))
    assert outcome["problems"] == [], soak.stdout
    assert len(outcome["outcomes"]) == num_changes
    assert outcome["steps"] > 40
    assert outcome["loss_difference"] < 1e-9
