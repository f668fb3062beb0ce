"""POST /v1/cluster/snapshots: the cluster's state from a collector, for services that may not read it."""

from __future__ import annotations

import asyncio
import math
import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Request

from oakum_service.api.auth import HookOrAdmin
from oakum_service.api.body_limit import STATE_PATH
from oakum_service.api.context import InContext
from oakum_service.errors import Conflict, PayloadError, RequestError, SchedulerError
from oakum_service.scheduler_table import SCHEDULERS
from oakum_service.schedulers.port import AGE_HEADER, RequestTime, StateListener

router = APIRouter(tags=["cluster"])

_Age = Annotated[float | None, Header(alias=AGE_HEADER, ge=0, description="Seconds since the reading began.")]


@router.post(
    STATE_PATH,
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    },
)
async def take_state(_: HookOrAdmin, context: InContext, request: Request, age_s: _Age = None) -> None:
    """Accept the state that `oakum collect` has read. The sender is checked before the body, which may be
    large, is read."""
    arrival = RequestTime(time.time(), age_s if age_s is None or math.isfinite(age_s) else None)
    scheduler = context.scheduler
    if not isinstance(scheduler, StateListener):
        ways = " or ".join(kind.state_by_post for kind in SCHEDULERS.values() if kind.state_by_post)
        raise Conflict(f"this service does not take a cluster's state by POST: start it with {ways}")
    body = await request.body()
    try:
        taken_at = await asyncio.to_thread(scheduler.on_state, body, arrival)
    except PayloadError as error:
        raise RequestError(str(error)) from error
    except SchedulerError as error:
        raise Conflict(str(error)) from error
    await asyncio.to_thread(context.peers.pass_on_state, body, taken_at)
