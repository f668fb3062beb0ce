"""How submitit starts a fragment on this machine.

submitit pickles `run_fragment` by reference and its argument, a path; everything else the fragment needs is in
the JSON file under that path. Imports without torch.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import submitit

from oakum_worker.fragment.config_files import write_config
from oakum_worker.payload import run_fragment
from oakum_worker.protocol import FragmentConfig
from oakum_worker.user_environment import withheld

# submitit's local executor ends a job after its timeout; a fragment's end is the service's decision.
_NO_TIMEOUT_MIN = 60 * 24 * 365
PYTHON = (sys.executable, "-P")
"""Without -P, `python -m` imports from its working folder first. A scheduler may run a job in /tmp where its node
does not have the folder that the service runs in, and in /tmp anybody may lay a module."""


def submit_local(folder: Path, config: FragmentConfig) -> int:
    """Start the fragment on this machine; returns the process id of submitit's controller.

    The folder's name is the fragment's id and part of the command line of each of its processes, by which a
    restarted service finds the fragment again.
    """
    write_config(folder, config)
    # submitit hands its own environment on; `env` takes what is not meant for users' code out of it.
    dropped = [word for name in withheld(os.environ) for word in ("-u", name)]
    executor = submitit.LocalExecutor(folder=folder, python=shlex.join(["env", *dropped, *PYTHON]))
    executor.update_parameters(
        timeout_min=_NO_TIMEOUT_MIN, tasks_per_node=1, stderr_to_stdout=True, name=config.fragment
    )
    # Ctrl-C on a terminal reaches every process of the foreground group. Children inherit blocked signals, so the
    # fragment does not get SIGINT or SIGHUP that is meant for the service.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        job = executor.submit(run_fragment, str(folder))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return int(job.job_id)
