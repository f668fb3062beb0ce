"""The REST API over a database of its own and a scheduler that exists in memory alone."""

from __future__ import annotations

import atexit
import copy
import functools
import math
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from starlette.datastructures import State

from empty_databases import engine_of, hand_back
from oakum_service.api.auth import Role
from oakum_service.api.context import Context
from oakum_service.app import add_parts, routed_app
from oakum_service.change_signal import ChangeSignal
from oakum_service.config import QuotaSettings, Settings
from oakum_service.control.membership import MembershipUpdater
from oakum_service.db.engine import open_engine, open_readers, open_reporters, open_sessions
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.documents.silence import Silence
from oakum_service.errors import SchedulerError
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.identity import audit, tokens
from oakum_service.schedulers.port import JobStart, OwnJob, Scheduler, Snapshot
from oakum_service.states import NodeState, TrainerState
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.protocol import FragmentReport, Phase
from oakum_worker.spec import TrainerSpec

with warnings.catch_warnings():
    # Starlette asks for httpx2, which nothing else here needs.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

SPEC: dict[str, Any] = {"name": "digits", "entrypoint": "tasks.digits:task", "global_batch": 96, "epochs": 2}
"""A spec with nothing in it that need not be."""


@dataclass
class FakeScheduler:
    """A scheduler in memory: nodes are as the test sets them, and jobs run until they are cancelled."""

    nodes: tuple[Node, ...] = (
        Node("n1", NodeState.HOLE, "10.0.0.1"),
        Node("n2", NodeState.HOLE, "10.0.0.2"),
    )
    own_jobs: list[OwnJob] = field(default_factory=list)
    starts: list[JobStart] = field(default_factory=list)
    submitted: list[FragmentConfig] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    name: str = "fake"
    ends_with_service: bool = False
    grace_s: float = 5.0
    max_age_s: float = 1.0
    is_silent: Silence | None = None
    calls: list[str] = field(default_factory=list)
    """Of `start` and `stop`."""
    limit_s: float | None = None
    """The time limit of jobs."""
    timed_out: frozenset[str] = frozenset()

    def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.calls.append("start")

    def snapshot(self) -> Snapshot:
        now = time.time()
        over = frozenset(job.fragment for job in self.own_jobs if (job.leaves_at or math.inf) <= now)
        self.own_jobs = [job for job in self.own_jobs if job.fragment not in over]
        self.timed_out |= over
        jobs, starts = tuple(self.own_jobs), tuple(self.starts)
        return Snapshot(now, self.nodes, jobs, starts, timed_out=self.timed_out)

    def taken_at(self) -> float | None:
        return time.time()

    def silence(self) -> Silence | None:
        return self.is_silent

    def submit(self, config: FragmentConfig) -> str:
        if config.node in {job.node for job in self.own_jobs}:
            raise SchedulerError(f"{config.node} is no longer idle")
        self.submitted.append(config)
        leaves_at = None if self.limit_s is None else time.time() + self.limit_s
        self.own_jobs.append(OwnJob(str(len(self.submitted)), config.fragment, config.node, leaves_at))
        return self.own_jobs[-1].job_id

    def cancel(self, fragment: str) -> None:
        self.cancelled.append(fragment)
        self.own_jobs = [job for job in self.own_jobs if job.fragment != fragment]

    def stop(self, *, leave_fragments: bool = False) -> None:
        self.calls.append("stop")
        if not leave_fragments:
            self.own_jobs.clear()


class WatchedHub(ChangeSignal):
    """A hub that tells when somebody is about to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = threading.Event()

    async def wait(self, seen: int, timeout_s: float) -> None:
        self.waited.set()
        await super().wait(seen, timeout_s)


@functools.cache
def _event_loop() -> BlockingPortal:
    """One event loop for all requests of this process: one anew for each request takes longer than the request."""
    starting = start_blocking_portal()
    portal = starting.__enter__()
    atexit.register(starting.__exit__, None, None, None)
    return portal


_OWNERS = (("slurm-hooks", "hook"), ("vera", "viewer"), ("ulla", "user"), ("anna", "admin"))
"""Name and role of those to whom a token belongs from the beginning."""


_routed_app = functools.cache(routed_app)


def _app_without_parts() -> FastAPI:
    """A new application that shares its routes, but not its state, with those of the other tests of this process.

    FastAPI prepares a route when it is first used, which takes longer than a request.
    """
    app = copy.copy(_routed_app())
    app.state = State()
    return app


@functools.cache
def _settings() -> Settings:
    """Settings that are copied for each test: reading them takes longer than most tests.

    Tests send as fast as they can, and any spec; those of quotas set their own.
    """
    quota = QuotaSettings(requests_per_s=math.inf, weight=1e6, curve_gain=math.inf)
    return Settings(quota=quota, trust_users=True)


class ApiUnderTest:
    """The app, a client for each role, and what a test needs to put into the database."""

    def __init__(self, data_dir: Path, scheduler: Scheduler | None = None, url: str | None = None) -> None:
        """The database is at `url`, or in the data directory; its schema has to be there."""
        self.settings = _settings().model_copy(update={"data_dir": data_dir, "database_url": url}, deep=True)
        self.engine = engine_of(data_dir / "oakum.db") if url is None else open_engine(url)
        self.engine_is_changed = False
        """Set by a test that leaves something at the engine, which another test must not get then."""
        self.sessions = open_sessions(self.engine)
        self.scheduler = scheduler or FakeScheduler()
        self.news_for_controller, self.news_for_readers = ChangeSignal(), WatchedHub()
        self.context = Context(
            settings=self.settings,
            sessions=self.sessions,
            readers=open_readers(self.engine),
            reporters=open_reporters(self.engine),
            configs=FragmentConfigs(self.settings, b"k" * 32, "http://service.test", grace_s=5.0),
            scheduler=self.scheduler,
            news_for_controller=self.news_for_controller,
            news_for_readers=self.news_for_readers,
        )
        self.app = add_parts(_app_without_parts(), self.context)
        with self.sessions.begin() as session:
            hook, viewer, user, admin = (tokens.create(session, audit.local_actor(), *owner) for owner in _OWNERS)
        self.anonymous = self.client(None)
        self.hook = self.client(hook)
        self.viewer = self.client(viewer)
        self.user = self.client(user)
        self.admin = self.client(admin)

    def close(self) -> None:
        """End event streams, and close the database."""
        self.news_for_readers.close()
        if self.engine_is_changed or self.settings.database_url is not None:
            self.engine.dispose()
        else:
            hand_back(self.engine)

    def keeper(self) -> MembershipUpdater:
        """The part of the controller that reads reports."""
        return MembershipUpdater(self.settings.regroup_timeout_s, self.settings.warm_up_timeout_s)

    def new_token(self, name: str, role: Role) -> str:
        with self.sessions.begin() as session:
            return tokens.create(session, audit.local_actor(), name, role.name.lower())

    def client(self, token: str | None) -> TestClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        client = TestClient(self.app, headers=headers, raise_server_exceptions=False)
        client.portal = _event_loop()
        return client

    def fragment_client(self, fragment: str) -> TestClient:
        """A client with the credentials of the fragment's agent."""
        return self.client(self.context.configs.token(fragment))

    def submit(self, **fields: object) -> dict[str, Any]:
        """Submit a spec and return its document."""
        response = self.user.post("/v1/trainers", json=SPEC | fields)
        assert response.status_code == 201, response.text
        document: dict[str, Any] = response.json()
        return document

    def submit_at_once(self, times: int, key: str | None, **fields: object) -> list[Any]:
        """Send one submission from several threads at the same time; returns all responses."""
        together = threading.Barrier(times)
        headers = {} if key is None else {"Idempotency-Key": key}

        def submit(_: int) -> Any:  # of httpx or httpx2, whichever Starlette's client has found
            together.wait(10.0)
            return self.user.post("/v1/trainers", json=SPEC | fields, headers=headers)

        with ThreadPoolExecutor(times) as threads:
            return list(threads.map(submit, range(times)))

    def trainer_names(self) -> list[str]:
        return [trainer["name"] for trainer in self.viewer.get("/v1/trainers").json()["trainers"]]

    def change_row(self, trainer: str, **columns: object) -> None:
        """Set columns of a trainer's row, as the controller would."""
        with self.sessions.begin() as session:
            row = session.get_one(Trainer, trainer)
            for name, value in columns.items():
                setattr(row, name, value)
        self.news_for_readers.notify()

    def end(self, trainer: str, state: TrainerState = TrainerState.FINISHED) -> None:
        """End a trainer as the controller would."""
        self.change_row(trainer, state=state, ended_at=time.time())

    def add_fragment(self, trainer: str, node: str = "n1", **columns: object) -> str:
        """Launch a fragment as the controller would; returns its id."""
        fragment = str(uuid.uuid4())
        fields = {"state": FragmentState.LIVE, "launched_at": time.time(), **columns}
        with self.sessions.begin() as session:
            session.add(Fragment(id=fragment, trainer_id=trainer, node=node, **fields))
        return fragment

    def stored_report(self, fragment: str) -> FragmentReport | None:
        with self.sessions.begin() as session:
            row = session.get(Report, fragment)
            return None if row is None else FragmentReport.model_validate(row.body)


_SAMPLES = {"fragment_id": "f1", "name": "poll_s", "ref": "digits", "token_id": "0" * 12, "user": "ulla"}


def path_with(path: str, given: Mapping[str, str] | None = None) -> str:
    """A route's path with a value for each of its parameters: the given one, else one of the right form, which is
    1 where nothing else is known."""
    known = _SAMPLES | dict(given or {})
    return re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], "1"), path)


def report(sequence: int = 1, phase: Phase = Phase.WARMING, **fields: object) -> dict[str, Any]:
    """An agent's report as it is sent."""
    document = {"phase": phase, "sequence": sequence, "pid": 1, "host": "n1", **fields}
    return FragmentReport.model_validate(document).model_dump(mode="json")


def full_spec(**fields: object) -> dict[str, Any]:
    """The spec as the service shows it, with every default filled in."""
    return TrainerSpec.model_validate(SPEC | fields).model_dump(mode="json")


def problem_of(response: httpx.Response, status: int) -> Mapping[str, Any]:
    """The problem document of a refused request, its form checked (RFC 9457)."""
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem.keys() == {"type", "title", "status", "detail", "errors"}
    assert problem["type"] == "about:blank"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem
