"""A write with an Idempotency-Key is carried out once, however often it is sent."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import delete
from sqlalchemy.orm import Session

from oakum_service.api.auth import Principal
from oakum_service.api.context import Context
from oakum_service.db.models.callers import IdempotencyRecord
from oakum_service.errors import Conflict

_KEPT_S = 24 * 3600.0

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        description="Sent again with the same body, the request is not carried out again; "
        "the first answer comes back.",
    ),
]


def is_answered(context: Context, principal: Principal, key: str | None) -> bool:
    """Whether `answer_once` has a stored answer for the key."""
    if key is None:
        return False
    with context.readers.begin() as session:
        return session.get(IdempotencyRecord, (key, principal.name)) is not None


def answer_once(
    session: Session,
    principal: Principal,
    key: str | None,
    request: dict[str, Any],
    status: HTTPStatus,
    carry_out: Callable[[], BaseModel],
) -> JSONResponse:
    """Carry the write out in this transaction, or return the stored answer if the key was used before.

    Raises `Conflict` if the key was used for a different request.
    """
    if key is None:
        return JSONResponse(carry_out().model_dump(mode="json"), status_code=status)
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    session.execute(delete(IdempotencyRecord).where(IdempotencyRecord.at < time.time() - _KEPT_S))
    known = session.get(IdempotencyRecord, (key, principal.name))
    if known is not None:
        if known.request != digest:
            raise Conflict(f"the Idempotency-Key {key!r} was used for another request: choose a new one")
        return JSONResponse(known.body, status_code=known.status, headers={"Idempotency-Replayed": "true"})
    body = carry_out().model_dump(mode="json")
    session.add(
        IdempotencyRecord(
            key=key, principal=principal.name, request=digest, status=status, body=body, at=time.time()
        )
    )
    return JSONResponse(body, status_code=status)
