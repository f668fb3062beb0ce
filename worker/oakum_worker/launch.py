"""How submitit starts a fragment: on this machine, or through Slurm.

submitit pickles `run_fragment` by reference and its argument, a path; everything else the fragment needs is in
the JSON file under that path. Imports without torch.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from oakum_worker.errors import LaunchError
from oakum_worker.payload import run_fragment
from oakum_worker.protocol import FragmentConfig

CONFIG_NAME = "fragment.json"
# submitit's local executor ends a job after its timeout; a fragment's end is the service's decision.
_NO_TIMEOUT_MIN = 60 * 24 * 365
_NOT_EXPORTED = ("OAKUM_", "SLURM_", "SBATCH_", "SRUN_", "SUBMITIT_")


def write_config(folder: Path, config: FragmentConfig) -> Path:
    """Write the config, readable by its owner alone: it holds the fragment's token."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / CONFIG_NAME
    path.touch(mode=0o600, exist_ok=True)
    path.write_text(config.model_dump_json(), encoding="utf-8")
    return path


def submit_local(folder: Path, config: FragmentConfig) -> int:
    """Start the fragment on this machine; returns the process id of submitit's controller.

    The folder's name is the fragment's id and part of every process's command line, by which an owner that has
    lost its memory finds the fragment again.
    """
    write_config(folder, config)
    executor = submitit.LocalExecutor(folder=folder, python=sys.executable)
    executor.update_parameters(
        timeout_min=_NO_TIMEOUT_MIN, tasks_per_node=1, stderr_to_stdout=True, name=config.fragment
    )
    # Ctrl-C on a terminal reaches every process of its group. A blocked signal stays blocked in children, so
    # the fragment hears only what is meant for it.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        job = executor.submit(run_fragment, str(folder))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return int(job.job_id)


@dataclass(frozen=True)
class SlurmJobOptions:
    """What `sbatch` is told of a fragment's job, beside what all of them have in common."""

    name: str
    node: str
    partition: str
    time_limit_min: int
    signal_before_end_s: int
    """SIGUSR2 so long before the time limit: the grace of a last replica."""
    qos: str | None = None
    account: str | None = None
    extra: dict[str, str] = field(default_factory=dict)
    """Further options of `sbatch`, by long name: `{"gres": "gpu:4"}`."""
    sbatch: tuple[str, ...] = ("sbatch",)
    """The command, with whatever has to stand before it."""


class _SlurmExecutor(submitit.SlurmExecutor):
    """submitit's, which runs `sbatch` from where it is told."""

    def __init__(self, folder: Path, sbatch: tuple[str, ...]) -> None:
        super().__init__(folder)
        self._sbatch = sbatch

    @classmethod
    def affinity(cls) -> int:
        # `srun` has to be there on the nodes, not here.
        return 2

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [*self._sbatch, str(submission_file_path)]


def submit_slurm(folder: Path, config: FragmentConfig, options: SlurmJobOptions) -> str:
    """Submit the fragment as a whole-node job of one node; returns Slurm's job id.

    Raises `LaunchError` with what `sbatch` said.
    """
    write_config(folder, config)
    executor = _SlurmExecutor(folder, options.sbatch)
    executor.update_parameters(
        job_name=options.name,
        partition=options.partition,
        time=options.time_limit_min,
        nodes=1,
        ntasks_per_node=1,
        exclusive=True,
        nodelist=options.node,
        qos=options.qos,
        account=options.account,
        signal_delay_s=options.signal_before_end_s,
        stderr_to_stdout=True,
        # One task that sees all of the node: without these Slurm may bind it to one core.
        srun_args=["--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL"],
        additional_parameters=_additional(options),
    )
    try:
        return str(executor.submit(run_fragment, str(folder)).job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        raise LaunchError(_last_line(str(error))) from error
    except OSError as error:
        raise LaunchError(f"{options.sbatch[0]} cannot be run: {error.strerror}") from error


def _additional(options: SlurmJobOptions) -> dict[str, Any]:
    return {"no-requeue": True, "mem": "0", "export": ",".join(_exported()), **options.extra}


def _exported() -> list[str]:
    """Names of the variables that jobs inherit: all but settings and secrets of the service, and Slurm's own."""
    names = [name for name in os.environ if name.isidentifier() and not name.startswith(_NOT_EXPORTED)]
    return [*names, "SLURM_CONF"] if "SLURM_CONF" in os.environ else names


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("sbatch:")]
    return (said or lines or ["no answer"])[-1]
