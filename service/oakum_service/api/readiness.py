"""/healthz and /readyz: whether the service answers, and whether all that it needs to do its work is there."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import SQLAlchemyError

from oakum_service.api.context import Context, InContext
from oakum_service.api.hook_intakes import present_intake
from oakum_service.api.schemas.readiness import Readiness, ReadinessCheck
from oakum_service.db.engine import newest_revision, present_revision
from oakum_service.schedulers.entry import HookIntake
from oakum_service.standing import moment

router = APIRouter(tags=["service"])
_log = logging.getLogger("oakum")
_PATIENCE_S = 4.0
_LATE_S = 10.0
_NOT_KNOWN = "not known, since the database does not answer"
_Faults = dict[Literal["database", "schema", "controller", "scheduler", "hooks"], str | None]
_NOT_NEEDED = "hooks"


@router.get("/healthz")
def healthz(context: InContext) -> dict[str, str]:
    """Say whether the service answers and whether it can write to its database; needs no token."""
    fault = context.writability.fault
    return {"status": "ok"} if fault is None else {"status": "cannot write", "detail": fault}


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready: `detail` says why."}})
async def readyz(request: Request, response: Response) -> Readiness:
    """Say whether the service can do its work, with a reason for each part that keeps it from it; needs no token.
    The status is 503 while it cannot."""
    probe = request.app.state.readiness
    assert isinstance(probe, ReadinessProbe)
    faults = await probe.look(present_intake(request.app))
    checks = [ReadinessCheck(name=name, ok=fault is None, detail=fault) for name, fault in faults.items()]
    ready = all(check.ok for check in checks if check.name != _NOT_NEEDED)
    if not ready:
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return Readiness(ready=ready, checks=checks)


class ReadinessProbe:
    """Looks at the service's parts, once for all who ask meanwhile, and does not wait for a part that hangs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._looking: asyncio.Task[_Faults] | None = None

    async def look(self, intake: HookIntake | None) -> _Faults:
        """What is wrong with each part; None for those that are as they should be. `intake` knows of the hooks."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(asyncio.to_thread(_faults, self._context, intake))
        try:
            return await asyncio.wait_for(asyncio.shield(self._looking), _PATIENCE_S)
        except TimeoutError:
            _log.warning("not ready: the database has not answered for %g s", _PATIENCE_S)
            fault = f"the database has not answered for {_PATIENCE_S:g} s"
            return {"database": fault, "schema": _NOT_KNOWN, "controller": _NOT_KNOWN, "scheduler": _NOT_KNOWN}


def _faults(context: Context, intake: HookIntake | None) -> _Faults:
    return {
        **_database_faults(context),
        "controller": _controller_fault(context),
        "scheduler": _scheduler_fault(context),
        **_hook_faults(intake),
    }


def _database_faults(context: Context) -> _Faults:
    """Why the database cannot be used, and what is wrong with its schema; None for what is as it should be."""
    try:
        with context.readers.begin() as session:
            present = present_revision(session)
    except SQLAlchemyError as error:
        # Only the log names the database's host and file: anybody may ask this.
        _log.warning("not ready: the database does not answer: %s", error)
        fault = "the database does not answer: the service's log says why"
        return {"database": fault, "schema": _NOT_KNOWN}
    newest, schema = newest_revision(), None
    if present != newest:
        schema = f"the schema is at revision {present}, expected {newest}: run `oakum db upgrade`"
    return {"database": context.writability.fault, "schema": schema}


def _controller_fault(context: Context) -> str | None:
    """Why the controller cannot be relied on; None if its turns are on time."""
    if not context.peers.is_controller:
        return _other_controller_fault(context)
    try:
        age_s, limit_s = context.turns.age_s, _LATE_S + context.current.now().poll_s
    except SQLAlchemyError:
        return _NOT_KNOWN
    if age_s is None:
        return "the controller has finished no turn yet: the scheduler has not answered"
    if age_s > limit_s:
        return f"the controller's last turn ended {age_s:.0f} s ago, expected {limit_s:.0f} s at most: see the log"
    return None


def _other_controller_fault(context: Context) -> str | None:
    """Why no other process can be relied on to be the controller; None if one renews its lease in time."""
    try:
        controller = context.peers.controller()
    except SQLAlchemyError:
        return _NOT_KNOWN
    if controller is None or not controller.is_current:
        return "no process is the controller now; one takes over within seconds"
    return None


def _hook_faults(intake: HookIntake | None) -> _Faults:
    """Whether the hooks that are installed are run; nothing for a scheduler without hooks."""
    if intake is None:
        return {}
    try:
        return {"hooks": intake.fault()}
    except SQLAlchemyError:
        return {"hooks": _NOT_KNOWN}


def _scheduler_fault(context: Context) -> str | None:
    """Why nothing can be planned on what is known of the cluster; None if that is fresh enough."""
    try:
        taken_at, around, silence = context.snapshot_at(), context.circumstances(), context.silence()
    except SQLAlchemyError:
        return _NOT_KNOWN
    name = context.scheduler.name
    if taken_at is None:
        return f"{name} has not answered yet" + (f": {silence.tried}" if silence is not None else "")
    if silence is not None:
        return f"{name} has not answered since {moment(silence.since)}, so nothing is launched: {silence.tried}"
    if around.unanswered_since is not None:
        return f"{name} has not answered for too long: nothing is launched on so old a state"
    return None
