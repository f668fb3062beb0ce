"""Weights that FSDP2 has split over ranks are updated as whole ones are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from waiting import DEADLINE_S

TESTS = Path(__file__).parents[1]


def test_clipping_lars_and_loss_scaling_see_through_shards(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "sharded_update_child"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "rendezvous")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            found = json.loads(process.communicate(timeout=DEADLINE_S)[0])
            assert found["moved"] > 0.01
            assert found["difference"] < 1e-12
            assert found["skipped"]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
