"""How submitit starts a fragment on this machine.

submitit pickles `run_fragment` by reference and its argument, a path; everything else the fragment needs is in
the JSON file under that path. Imports without torch.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import submitit
from submitit.local.local import LocalJob

from oakum_worker.fragment.config_files import write_config
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.payload import run_fragment
from oakum_worker.user_environment import withheld

# submitit's local executor ends a job after its timeout; a fragment's end is the service's decision.
_NO_TIMEOUT_MIN = 60 * 24 * 365
PYTHON = (sys.executable, "-P")
"""Without -P, `python -m` imports from its working folder first. A scheduler may run a job in /tmp where its node
does not have the folder that the service runs in, and in /tmp anybody may lay a module."""


class _LocalExecutor(submitit.LocalExecutor):
    """submitit's executor for this machine, whose controller imports nothing from its working folder."""

    # submitit's own starts it without -P, and takes no other command.
    def _submit_command(self, command: str) -> LocalJob[Any]:
        variables = {
            "NTASKS": "1",
            "COMMAND": command,
            "TIMEOUT_S": str(60 * _NO_TIMEOUT_MIN),
            "SIGNAL_DELAY_S": "30",
            "NODEID": "0",
            "JOB_NUM_NODES": "1",
            "WITH_SHELL": "",
        }
        environment = {**os.environ, **{f"SUBMITIT_LOCAL_{name}": value for name, value in variables.items()}}
        environment |= {"SUBMITIT_STDERR_TO_STDOUT": "1", "SUBMITIT_EXECUTOR": "local", "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen([*PYTHON, "-m", "submitit.local._local", str(self.folder)], env=environment)
        return LocalJob(self.folder, job_id=str(process.pid), process=process)


def submit_local(folder: Path, config: FragmentConfig) -> int:
    """Start the fragment on this machine; returns the process id of submitit's controller.

    The folder's name is the fragment's id and part of the command line of each of its processes, by which a
    restarted service finds the fragment again.
    """
    write_config(folder, config)
    # submitit hands its own environment on; `env` takes what is not meant for users' code out of it.
    dropped = [word for name in withheld(os.environ) for word in ("-u", name)]
    executor = _LocalExecutor(folder=folder, python=shlex.join(["env", *dropped, *PYTHON]))
    executor.update_parameters(timeout_min=_NO_TIMEOUT_MIN, name=config.fragment)
    # Ctrl-C on a terminal reaches every process of the foreground group. Children inherit blocked signals, so the
    # fragment does not get SIGINT or SIGHUP that is meant for the service.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        job = executor.submit(run_fragment, str(folder))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return int(job.job_id)
