"""Checks whether Slurm runs the hooks that are installed: by what the service has heard of its jobs, and of the
tiny job that was run on a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from oakum_service.config import Settings
from oakum_service.db.engine import Sessions, open_engine, open_readers
from oakum_service.errors import ConfigurationError
from oakum_service.schedulers.slurm.hooks.installation import RESTART
from oakum_service.schedulers.slurm.hooks.missed import expected_since, heard_of, missed_jobs
from oakum_service.schedulers.slurm.hooks.trial_job import Heard, judge, wait_for_hooks
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding, error, note, ok, warning

SUBJECT = "hooks run"


def check(settings: Settings, job: int | None, unknown: str = "") -> list[PreflightFinding]:
    """Findings on hooks, where they are installed for this service: on the jobs that it has seen, and on `job`,
    which has run a moment ago. `unknown`: why no job can tell; empty if none was asked for."""
    try:
        with _readers(settings) as readers:
            with readers.begin() as session:
                if expected_since(session) is None:
                    return []
                missed = missed_jobs(session, time.time()).told
            findings = [warning(SUBJECT, missed.rpartition(": ")[0], RESTART)] if missed else []
            if job is not None:
                return [*findings, finding_of(job, _wait(readers, job))]
    except (ConfigurationError, SQLAlchemyError, OSError) as failure:
        fault = str(getattr(failure, "orig", None) or failure).splitlines()[0]
        return [note(SUBJECT, f"whether Slurm runs them is not known: {fault}")]
    return [*findings, note(SUBJECT, f"whether Slurm runs them is not known: {unknown}")] if unknown else findings


def finding_of(job: int, heard: Heard) -> PreflightFinding:
    """The finding on a job that has ended and of which these hooks have told."""
    tried = judge(job, heard)
    return ok(SUBJECT, tried.told) if tried.are_run else error(SUBJECT, tried.told, tried.change)


def _wait(readers: Sessions, job: int) -> Heard:
    def ask() -> Heard:
        with readers.begin() as session:
            return heard_of(session, [job]).get(job, {})

    return wait_for_hooks(ask)


@contextmanager
def _readers(settings: Settings) -> Iterator[Sessions]:
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise FileNotFoundError(f"{url.database} does not exist: the service has not been started yet")
    engine = open_engine(settings.database)
    try:
        yield open_readers(engine)
    finally:
        engine.dispose()
