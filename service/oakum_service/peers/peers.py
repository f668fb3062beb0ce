"""What a process that answers requests asks of the one that is the controller, and tells it."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import zlib
from typing import Protocol

from sqlalchemy import select

from oakum_service.db.engine import Sessions
from oakum_service.db.lease import LeaseHolder, database_time, seen_of_scheduler
from oakum_service.db.models.cluster import PostedState
from oakum_service.db.models.installation import Lease
from oakum_service.documents.silence import Silence
from oakum_service.errors import SchedulerError
from oakum_service.peers.line import LONGEST, Line
from oakum_service.schedulers.port import (
    HookEvent,
    HookKind,
    HookListener,
    RequestTime,
    Scheduler,
    StateListener,
)

_log = logging.getLogger("oakum")
_HOOK = "hook"
_STATE = "state"
_FAST = 1
"""zlib's level: a cluster's state shrinks to a tenth, whatever the level."""


@dataclasses.dataclass(frozen=True)
class ControllerSeen:
    """What the database tells of the process that is the controller."""

    name: str
    """Its host and process id."""
    is_current: bool
    """Whether it has renewed its lease in time."""
    snapshot_at: float | None
    """When it last read the scheduler's state, in Unix seconds; None if it has not yet."""
    silence: Silence | None = None
    """Since when the scheduler has not answered it; None if it does."""


class Peers(Protocol):
    """The service's other processes."""

    @property
    def is_controller(self) -> bool:
        """Whether this process is the controller."""

    def controller(self) -> ControllerSeen | None:
        """The process that is, or was last, the controller; None before the first."""

    def pass_on_hook(self, event: HookEvent) -> None:
        """Let the controller know of a hook's event, if that is another process. Returns at once."""

    def pass_on_state(self, body: bytes, taken_at: float) -> None:
        """Give the controller the cluster's state as a collector has posted it, read at `taken_at`, if that is
        another process."""


class NoPeers:
    """The peers of a service that is alone with its database: it is always the controller."""

    is_controller = True

    def controller(self) -> None:
        """Nothing but this process."""

    def pass_on_hook(self, event: HookEvent) -> None:
        """There is nobody else."""

    def pass_on_state(self, body: bytes, taken_at: float) -> None:
        """There is nobody else."""


class DatabasePeers:
    """Other processes of the service, reached through the database that they share."""

    def __init__(
        self, sessions: Sessions, readers: Sessions, line: Line, lease: LeaseHolder, scheduler: Scheduler
    ) -> None:
        """`scheduler` is the adapter of this process, which gets what the others pass on."""
        self._sessions, self._readers = sessions, readers
        self._line, self._lease, self._scheduler = line, lease, scheduler
        line.hear(_HOOK, self._take_hook)
        line.hear(_STATE, lambda _: self._take_state())

    @property
    def is_controller(self) -> bool:
        """Whether this process holds the lease, as far as it knows."""
        return self._lease.is_held

    def controller(self) -> ControllerSeen | None:
        """The holder of the lease, as the database has it."""
        with self._readers.begin() as session:
            lease = session.execute(select(Lease).where(Lease.id == 1)).scalar_one_or_none()
            if lease is None:
                return None
            is_current = lease.expires_at > database_time(session)
            silence = seen_of_scheduler(session).silence
            return ControllerSeen(lease.holder, is_current, lease.snapshot_at, silence)

    def pass_on_hook(self, event: HookEvent) -> None:
        """Tell the controller of the event. Without its nodes if they are too many for a message: the controller
        then learns them from the scheduler, which it reads at once."""
        if self._lease.is_held:
            return
        text = json.dumps(dataclasses.asdict(event))
        if len(text) > LONGEST:
            text = json.dumps(dataclasses.asdict(dataclasses.replace(event, nodes="")))
        self._line.tell(_HOOK, text)

    def pass_on_state(self, body: bytes, taken_at: float) -> None:
        """Store the state in place of the one before, and tell the controller of it. In the controller's own
        process, do nothing."""
        if self._lease.is_held:
            return
        with self._sessions.begin() as session:
            session.merge(PostedState(id=1, taken_at=taken_at, body=zlib.compress(body, _FAST)))
        self._line.tell(_STATE)

    def _take_hook(self, text: str) -> None:
        if not text or not self._lease.is_held or not isinstance(self._scheduler, HookListener):
            return
        given = json.loads(text)
        self._scheduler.on_hook(HookEvent(**(given | {"kind": HookKind(given["kind"])})))

    def _take_state(self) -> None:
        if not self._lease.is_held or not isinstance(self._scheduler, StateListener):
            return
        with self._readers.begin() as session:
            row = session.get(PostedState, 1)
        if row is None:
            return
        now = time.time()
        try:
            self._scheduler.on_state(zlib.decompress(row.body), RequestTime(now, now - row.taken_at))
        except SchedulerError as error:
            _log.warning("a state that another process of the service has stored: %s", error)
