"""Hands a fragment over to its user's Unix account, by the launcher that the config names. Imports no torch.

The scheduler starts the fragment in the service's account. There this process starts the launcher, which becomes
the user and starts the fragment again. Config and environment go through the launcher's stdin: the command line is
for everybody to read, and sudo lets no environment through. What comes back is the fragment's log, on the
service's disk: this process stays, to hand it on up to a limit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from oakum_worker.errors import LaunchError
from oakum_worker.fragment import CONFIG_NAME
from oakum_worker.fragment.output import FragmentOutput
from oakum_worker.user_environment import passed_on

_OF_THE_ACCOUNT = frozenset(
    {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "MAIL", "PWD", "OLDPWD", "TMPDIR"}
)
_LEFT_BEHIND = ("PYTHON", "VIRTUAL_ENV", "SUDO_", "XDG_", "SSH_", "SUBMITIT_", "LC_")
_MOST_BYTES = 80 << 20
"""Of a fragment's log: what the agent lets its ranks print, and what it says itself. Whoever runs code in the
user's account can write in the agent's place."""
_STALE_S = 30 * 24 * 3600.0
"""Seconds after which the folder of a fragment that was killed is removed."""


def enter_account(config_file: Path) -> None:
    """Run the fragment by the launcher, if the config names an account for it, and end this process with it; else
    return. Raises `LaunchError` where there is no `sudo`."""
    config = json.loads(config_file.read_text(encoding="utf-8"))
    run_as = config.pop("run_as", None)
    if run_as is None:
        return
    request = {"config": config, "environment": _handed_on(os.environ)}
    command = ["sudo", "-n", "--", run_as["launcher"], "fragment", "--account", run_as["account"]]
    _end_with(command, json.dumps(request).encode())


def _end_with(command: Sequence[str], request: bytes) -> NoReturn:
    """Run the command, hand on what it prints, and end this process as it ends."""
    output = FragmentOutput(1, _MOST_BYTES)
    printing, stdin = output.open(), os.memfd_create("fragment-config")
    try:
        with os.fdopen(stdin, "wb", closefd=False) as file:
            file.write(request)
        os.lseek(stdin, 0, os.SEEK_SET)
        process = subprocess.Popen(command, stdin=stdin, stdout=printing, stderr=printing)
    except OSError as error:
        raise LaunchError(f"sudo could not be run on this node: {error}") from error
    finally:
        os.close(printing)
        os.close(stdin)
    # The scheduler tells every process of the job to go; the agent decides when. A handler, since what is ignored
    # is inherited.
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    status = process.wait()
    output.drain()
    os._exit(status if status >= 0 else 128 - status)


def receive(stream: BinaryIO, account_folder: Path) -> Path:
    """In the user's account: read what `enter_account` has handed over, take its environment on, and write its
    config into a folder of the fragment's below the account's. Returns this folder."""
    request: dict[str, Any] = json.loads(stream.read())
    os.environ.update(request["environment"])
    fragments = account_folder / "fragments"
    _remove_stale(fragments)
    folder = fragments / Path(request["config"]["fragment"]).name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(folder / CONFIG_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(request["config"], file)
    return folder


def _handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a fragment takes along into its user's account: those of the job and of the node, but
    neither secrets nor what belongs to the account that it leaves."""
    return {
        name: value
        for name, value in passed_on(environment).items()
        if name not in _OF_THE_ACCOUNT and not name.startswith(_LEFT_BEHIND)
    }


def _remove_stale(fragments: Path) -> None:
    for folder in fragments.glob("*"):
        try:
            age_s = time.time() - (folder / CONFIG_NAME).stat().st_mtime
        except OSError:  # another fragment's, about to be written or just removed
            continue
        if age_s > _STALE_S:
            shutil.rmtree(folder, ignore_errors=True)
