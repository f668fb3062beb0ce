"""/v1/audit: who did what, from where."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from oakum_service.api.auth import Role, Viewer
from oakum_service.api.context import InContext
from oakum_service.api.paging import page
from oakum_service.api.schemas.audit import AuditEntry, AuditLog
from oakum_service.db.models.base import LARGEST_ID
from oakum_service.db.models.events import AuditRecord
from oakum_service.identity import audit

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("")
def list_acts(
    context: InContext,
    viewer: Viewer,
    actor: Annotated[str | None, Query(max_length=63, description="acts of this user only")] = None,
    subject: Annotated[str | None, Query(max_length=255, description="name of a trainer or user")] = None,
    action: Annotated[
        str | None, Query(max_length=32, description="such as trainer.cancelled, or refused")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 200,
    before: Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="`next` of the last answer")] = None,
) -> AuditLog:
    """List the newest acts. Administrators see all; others what they did themselves, and what was done to their
    trainers and tokens."""
    reader = None if viewer.role is Role.ADMIN else viewer.name
    with context.readers.begin() as session:
        records = audit.listed(
            session, limit + 1, reader=reader, actor=actor, subject=subject, action=action, before=before
        )
        rows, has_more = page(records, limit)
        return AuditLog(entries=[_entry(row) for row in rows], next=rows[-1].id if has_more else None)


def _entry(row: AuditRecord) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at,
        actor=row.actor,
        role=row.role,
        token=row.token,
        request=row.request,
        address=row.address,
        action=row.action,
        subject=row.subject,
        owner=row.owner,
        refused=row.refused,
        details=row.details,
    )
