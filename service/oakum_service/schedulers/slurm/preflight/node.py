"""Runs one tiny job on a node, to see whether a fragment would find there what it needs."""

from __future__ import annotations

import json
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from oakum_service.config import Settings
from oakum_service.errors import CommandFailed, SchedulerError
from oakum_service.schedulers.slurm.preflight import hooks_run
from oakum_service.schedulers.slurm.preflight.facts import submit_options
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding, error, note, ok, warning
from oakum_service.schedulers.slurm.short_job import run_short_job

_LIMIT_MIN = 3
_RUN_S = 150.0
"""Time limit of the job in seconds: reading torch from a busy shared folder may take a minute."""
_REPLY_WITHIN_S = 10.0
"""Seconds to wait for the job's file: a shared folder may show a new file late."""
_URL_TIMEOUT_S = 5.0
_NO_NODE = ("busy", "immediate", "unable to allocate", "allocation revoked")


def check(settings: Settings, wait_s: int) -> list[PreflightFinding]:
    """Run the job, if a node is free within `wait_s` seconds, and judge its answers. Returns the findings."""
    url, findings = _service(settings)
    folder = settings.data_dir.resolve()
    token = secrets.token_hex(8)
    try:
        with _token_file(folder, token):
            told = _run(settings, wait_s, folder, token, url)
            findings += judge(told, folder, url, replied=_replied(folder, token))
            return [*findings, *_hooks(settings, told.get("job"), url)]
    except OSError as failure:
        change = "OAKUM_DATA_DIR: a folder that the nodes share and this account may write"
        return [*findings, error("shared folder", f"{folder}: {failure}", change)]
    except CommandFailed as failure:
        return [*findings, _not_run(failure, wait_s), *hooks_run.check(settings, None, "no job could be run")]
    except SchedulerError as failure:
        return [*findings, error("node", str(failure))]


def judge(told: dict[str, Any], folder: Path, url: str, *, replied: bool) -> list[PreflightFinding]:
    """Findings on what the job found on its node: shared folder, packages and the way to the service at `url`.
    `replied`: whether its file appeared in the folder."""
    host = told["host"]
    return [
        ok("node", f"{host} ran a job of {sys.executable}"),
        _shared_folder(told, folder, host, replied),
        *(
            _importable(told[name], package, host)
            for name, package in (("worker", "oakum_worker"), ("torch", "torch"))
        ),
        *([_reached(told["url"], url, host)] if told["url"] else []),
        *([_launcher(told["launcher"], host)] if told["launcher"] else []),
    ]


def _hooks(settings: Settings, job: str | None, url: str) -> list[PreflightFinding]:
    """Findings on whether Slurm has run the hooks for the job. While no service runs they keep what they tell."""
    if not url:
        return hooks_run.check(settings, None, "no service runs that they could tell")
    if job is None or not job.isdecimal():
        return hooks_run.check(settings, None, "the job had no SLURM_JOB_ID")
    return hooks_run.check(settings, int(job))


def _shared_folder(told: dict[str, Any], folder: Path, host: str, replied: bool) -> PreflightFinding:
    change = "OAKUM_DATA_DIR: a folder that the nodes share and this account may write"
    if told["read"]["error"]:
        return error("shared folder", f"{host} does not see {folder}: {told['read']['error']}", change)
    if told["write"]["error"]:
        return error("shared folder", f"{host} may not write {folder}: {told['write']['error']}", change)
    if not replied:
        found = f"what {host} writes to {folder} is not seen here within {_REPLY_WITHIN_S:.0f} s"
        return error("shared folder", found, change)
    return ok("shared folder", f"{host} reads and writes {folder}")


def _importable(told: dict[str, str], package: str, host: str) -> PreflightFinding:
    if told["error"]:
        change = (
            f"in Oakum's checkout, run {sys.executable} -m pip install '.[worker]', "
            "on the nodes or in a folder that they share"
        )
        return error(package, f"not importable on {host}: {told['error']}", change)
    return ok(package, told["found"])


def _reached(told: dict[str, str], url: str, host: str) -> PreflightFinding:
    if told["error"]:
        change = (
            "OAKUM_HOST=0.0.0.0 and OAKUM_PUBLIC_URL=https://HEAD:8470, a name that the nodes resolve and the "
            "service has a certificate for"
        )
        return error("service", f"{host} does not reach {url}: {told['error']}", change)
    return ok("service", f"{host} reaches {url}")


def _launcher(told: dict[str, str], host: str) -> PreflightFinding:
    if told["error"]:
        change = "`sudo oakum run-as install` on every node, with the service's account, spool and paths"
        return error("accounts", f"users' accounts cannot be entered on {host}: {told['error']}", change)
    return ok("accounts", f"{host} enters users' accounts, with {told['found']} for their files")


def _service(settings: Settings) -> tuple[str, list[PreflightFinding]]:
    """The running service's address as nodes see it, empty if no service runs, and findings about it."""
    url = settings.public_url or _written_url(settings)
    try:
        trusted = ssl.create_default_context(cafile=settings.ca_file)
        with urllib.request.urlopen(f"{url}/healthz", timeout=_URL_TIMEOUT_S, context=trusted):
            return url, []
    except (OSError, ValueError) as failure:
        found = f"no service answers at {url} ({failure}): whether nodes reach it is not known"
        return "", [note("service", found, "start `oakum serve`, then check again")]


def _written_url(settings: Settings) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(settings.service_file.read_text(encoding="utf-8"))["url"])
    scheme = "http" if settings.tls_certificate is None else "https"
    return f"{scheme}://{settings.host}:{settings.port}"


@contextmanager
def _token_file(folder: Path, token: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"check-{token}"
    try:
        file.write_text(token, encoding="utf-8")
        yield
    finally:
        file.unlink(missing_ok=True)
        (folder / f"{file.name}.reply").unlink(missing_ok=True)


def _replied(folder: Path, token: str) -> bool:
    deadline_s = time.monotonic() + _REPLY_WITHIN_S
    while not (folder / f"check-{token}.reply").exists():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True


def _run(settings: Settings, wait_s: int, folder: Path, token: str, url: str) -> dict[str, Any]:
    probe = (files("oakum_service.schedulers.slurm.preflight") / "probe.py").read_text(encoding="utf-8")
    launcher = str(settings.slurm.launcher) if settings.runs_as_submitters else ""
    authorities = "" if settings.ca_file is None else settings.ca_file.read_text(encoding="utf-8")
    command = [sys.executable, "-P", "-c", probe, str(folder), token, url, authorities, launcher]
    options = (*submit_options(settings.slurm), f"--time={_LIMIT_MIN}")
    name = f"check-oakum-{token}"
    output = run_short_job(settings.slurm, name, command, wait_s=wait_s, most_s=_RUN_S, options=options)
    return _read(output, token)


def _read(output: bytes, token: str) -> dict[str, Any]:
    for line in output.decode(errors="replace").splitlines():
        with suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict) and told.get("token") == token:
                return told
    raise SchedulerError(f"the job on the node answered {output[-200:]!r}, expected a line of JSON")


def _not_run(failure: CommandFailed, wait_s: int) -> PreflightFinding:
    if any(word in failure.last_line.lower() for word in _NO_NODE):
        found = f"no node was free within {wait_s} s: {failure.last_line}"
        return warning("node", found, "check again later, or with a longer --wait")
    return error("node", str(failure), f"is {sys.executable} on the nodes? fragments run by it")
