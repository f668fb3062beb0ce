"""How submitit starts a fragment: on this machine, or later through Slurm.

submitit pickles `run_fragment` by reference and its argument, a path; everything else the fragment needs is in
the JSON file under that path. Imports without torch.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import submitit

from oakum_worker.protocol import FragmentConfig

CONFIG_NAME = "fragment.json"
# submitit's local executor ends a job after its timeout; a fragment's end is the service's decision.
_NO_TIMEOUT_MIN = 60 * 24 * 365


def run_fragment(folder: str) -> None:
    """The payload: be the agent of the fragment whose config lies in `folder`."""
    # submitit has just made this process ignore SIGTERM. Until the agent stands there is nothing to take leave of.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    from oakum_worker.agent import Agent  # kept out of the service's imports

    config_file = Path(folder) / CONFIG_NAME
    config = FragmentConfig.model_validate_json(config_file.read_text(encoding="utf-8"))
    Agent(config, config_file).run()
    # The node is wanted back: submitit's pickling of a result that nobody reads would only keep it longer.
    logging.shutdown()
    os._exit(0)


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
