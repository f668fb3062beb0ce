"""Runs a tiny job and asks the service whether Slurm's hooks have told of it."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oakum_service.config import SlurmSettings
from oakum_service.errors import CommandFailed
from oakum_service.schedulers.port import HookKind
from oakum_service.schedulers.slurm.hooks.installation import RESTART
from oakum_service.schedulers.slurm.short_job import run_short_job

HEARD_WITHIN_S = 20.0
"""Time after a job's end for its epilogs, and what they send."""
_LOOK_EVERY_S = 0.5
_ASK_S = 5.0
_RUN_S = 60.0
_URL = re.compile(r'^url = "(.*)"$', re.MULTILINE)
_UNKNOWN = "whether Slurm runs the hooks is not known"

Heard = Mapping[str, list[str]]
"""Kind of event -> the hooks that have told of a job."""


@dataclass(frozen=True)
class TriedHooks:
    """What came of a tiny job."""

    told: str
    """A clause."""
    change: str = ""
    """What to do; empty if nothing has to be done."""
    job: int | None = None
    """The job's number; None if none has run."""
    heard: Heard = field(default_factory=dict)
    are_run: bool | None = None
    """Whether Slurm runs the hooks; None if that is not known."""


def judge(job: int, heard: Heard) -> TriedHooks:
    """What it means that these hooks have told of a job that has ended."""
    names = ", ".join(hook for hooks in heard.values() for hook in hooks)
    missing = [kind.value for kind in HookKind if not heard.get(kind)]
    if not missing:
        return TriedHooks(f"Slurm runs them: {names} told of job {job}", "", job, heard, True)
    if not names:
        return TriedHooks(f"Slurm does not run them: none told of job {job}", RESTART, job, heard, False)
    told = f"Slurm does not run all of them: {names} told of job {job}, and none that it was {missing[0]}"
    return TriedHooks(told, RESTART, job, heard, False)


def wait_for_hooks(ask: Callable[[], Heard]) -> Heard:
    """Call `ask` again and again until hooks have reported both the start and the end of a job that has ended, for
    `HEARD_WITHIN_S` seconds at most. Returns its last answer."""
    deadline_s = time.monotonic() + HEARD_WITHIN_S
    while not all((heard := ask()).get(kind) for kind in HookKind) and time.monotonic() <= deadline_s:
        time.sleep(_LOOK_EVERY_S)
    return heard


def try_hooks(config_file: Path, settings: SlurmSettings, partition: str | None, wait_s: int) -> TriedHooks:
    """Run a job that does nothing, and wait until the service, which `config_file` names, has heard of its start
    and end."""
    job = _run(settings, partition, wait_s)
    if isinstance(job, str):
        return TriedHooks(f"{_UNKNOWN}, as no job could be run: {job}")
    try:
        return judge(job, wait_for_hooks(lambda: _ask(config_file, job)))
    except _NoAnswer as error:
        return TriedHooks(f"{_UNKNOWN}: asked for job {job}, the service answered {error}", job=job)


def _run(settings: SlurmSettings, partition: str | None, wait_s: int) -> int | str:
    """The number of a job that has run, or why none has."""
    name, command = f"oakum-hooks-{secrets.token_hex(4)}", ("/bin/sh", "-c", "echo $SLURM_JOB_ID")
    options = ("--time=1", *([f"--partition={partition}"] if partition else []))
    try:
        output = run_short_job(settings, name, command, wait_s=wait_s, most_s=_RUN_S, options=options)
    except CommandFailed as error:
        return error.last_line or str(error)
    number = output.decode(errors="replace").strip()
    return int(number) if number.isdecimal() else f"it wrote {number[-200:]!r}, expected the job's number"


def _ask(config_file: Path, job: int) -> Heard:
    """What the service has heard of the job. Raises `_NoAnswer` with what came instead. curl gets the token on its
    stdin: a command line is there for all to see."""
    given = _URL.sub(rf'url = "\1/{job}"', config_file.read_text(encoding="utf-8"))
    command = [shutil.which("curl") or "curl", "-q", "-sS", "--config", "-", "--max-time", str(_ASK_S)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=2 * _ASK_S, check=False)
    try:
        heard = json.loads(done.stdout)["heard"]
        return {str(kind): [str(hook) for hook in hooks] for kind, hooks in heard.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise _NoAnswer(repr(done.stdout[:200] or done.stderr.strip())) from error


class _NoAnswer(Exception):  # noqa: N818
    """The service has said nothing of the job."""
