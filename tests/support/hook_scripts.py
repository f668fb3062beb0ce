"""Slurm's hooks, installed for a test and run as Slurm runs them."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from bad_services import free_port
from oakum_service.schedulers.slurm.hooks.installation import HookInstallation
from oakum_service.schedulers.slurm.hooks.report import Hook
from patient_hooks import make_patient

LIMIT_S = 10.0
"""Far above the 2 seconds that a hook takes, and far below for ever: this machine may be busy."""

TOKEN = "oakum-none"


HOSTILE = (
    '"',
    "'",
    "\\",
    "$(touch hit)",
    "`touch hit`",
    "a b",
    "a\nb",
    "x" * 100_000,
    "../../hit",
    "-n",
    "*",
    "é",
    "}],",
)
"""Values that no variable of Slurm's should have."""


@dataclass
class Hooks:
    """An installation of the hooks, whose scripts can be run as Slurm runs them."""

    made: HookInstallation
    data_dir: Path | None = None

    def run(self, hook: Hook, job: int = 7, **variables: str) -> float:
        """Run one script with Slurm's variables and nothing else in the environment; returns its seconds."""
        environment = {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NODELIST": "n[1-4]",
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_PARTITION": "batch",
            "SLURM_JOB_START_TIME": str(int(time.time())),
            "SLURM_JOB_END_TIME": str(int(time.time()) + 3600),
        }
        if hook.on_nodes:
            environment |= {"SLURMD_NODENAME": "n1", "SLURM_NODELIST": environment.pop("SLURM_JOB_NODELIST")}
        else:
            environment |= {"SLURM_JOB_RESTART_COUNT": "0", "SLURM_CLUSTER_NAME": "test"}
        return run_alone(self.made.folder / hook, environment | variables)

    def replay(self) -> None:
        run_alone(self.made.folder / "replay", {}, limit_s=60.0)

    def kept(self) -> list[str]:
        """What the spool holds, the oldest first."""
        folders = [self.made.spool / place for place in ("ctld", "node")]
        folders += [Path(f"{self.made.fallback}-{place}") for place in ("ctld", "node")]
        return [file.name for folder in folders for file in sorted(folder.glob("*.json"))]

    def point_at(self, url: str, token: str = TOKEN) -> None:
        """Install again, for another service: one that answers has a token, and time to answer."""
        assert self.made.install(url, token, owner="root") == []
        if token != TOKEN:
            make_patient(self.made)

    def change(self, hook: Hook, pattern: str, replacement: str) -> None:
        """Change a line of a script."""
        file = self.made.folder / hook
        text, num_changed = re.subn(pattern, replacement, file.read_text("utf-8"), flags=re.MULTILINE)
        assert num_changed == 1
        file.write_text(text, encoding="utf-8")


def run_alone(script: Path, environment: dict[str, str], limit_s: float = LIMIT_S, **how: str) -> float:
    began_s = time.monotonic()
    done = subprocess.run([script], env=environment, capture_output=True, timeout=60.0, cwd="/", **how)  # type: ignore[call-overload]
    took_s = time.monotonic() - began_s
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert took_s < limit_s
    return took_s


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    made = HookInstallation(tmp_path / "hooks", tmp_path / "spool", tmp_path / "shm")
    hooks = Hooks(made)
    hooks.point_at(f"http://127.0.0.1:{free_port()}")
    return hooks


JOBS = iter(range(100, 100_000))


@pytest.fixture
def job() -> int:
    """A job that no other test tells of."""
    return next(JOBS)
