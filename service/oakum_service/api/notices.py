"""/v1/notices: which notices were sent to whom, and a test of a recipient."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import select

from oakum_service.api.auth import Role, User, Viewer
from oakum_service.api.context import Context, InContext
from oakum_service.api.schemas.notices import NoticeList, NoticeTest, NoticeTested, NoticeView
from oakum_service.api.views import find_trainer
from oakum_service.db.models.events import NoticeRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.notice import Notice
from oakum_service.errors import Conflict, NoticeFailed
from oakum_service.notices.sender import Courier
from oakum_worker.spec_options import shown_target

router = APIRouter(prefix="/v1/notices", tags=["notices"])

_AT_ONCE = threading.BoundedSemaphore(2)
"""Most tests at once: a recipient may be slow, and the server has a limited number of threads for requests."""


@router.get("")
def list_notices(
    context: InContext,
    viewer: Viewer,
    trainer: Annotated[str | None, Query(description="name or id")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> NoticeList:
    """List the newest notices with the outcome of each, in order of time. Users see those of their own
    trainers."""
    query = select(NoticeRecord).where(NoticeRecord.channel != "")
    if viewer.role == Role.USER:
        own = select(Trainer.id).where(Trainer.user_name == viewer.name)
        query = query.where(NoticeRecord.trainer_id.in_(own))
    with context.readers.begin() as session:
        if trainer is not None:
            query = query.where(NoticeRecord.trainer_id == find_trainer(session, trainer).id)
        newest = query.order_by(NoticeRecord.created_at.desc(), NoticeRecord.id).limit(limit)
        return NoticeList(notices=[_view(row) for row in session.scalars(newest)][::-1])


def _view(row: NoticeRecord) -> NoticeView:
    return NoticeView(
        id=row.id,
        event=row.event,
        trainer=row.document.trainer,
        recipient=shown_target(row.channel, row.target),
        created_at=row.created_at,
        attempts=row.attempts,
        sent_at=row.sent_at,
        next_at=row.due_at,
        error=row.error,
    )


@router.post("/test")
def try_recipient(request: NoticeTest, context: InContext, user: User) -> NoticeTested:
    """Send a notice of the event `test` to one recipient now, and return the outcome."""
    channel, target = request.recipient
    notice = Notice(
        event="test",
        trainer="test",
        trainer_id=None,
        user=user.name,
        message="This is a test of Oakum's notices: nothing has happened.",
        step=None,
        at=time.time(),
        id=str(uuid.uuid4()),
    )
    error = _try(context, channel, target, notice)
    return NoticeTested(sent=not error, recipient=shown_target(channel, target), error=error)


def _try(context: Context, channel: str, target: str, notice: Notice) -> str:
    if not _AT_ONCE.acquire(blocking=False):
        raise Conflict("other tests of notices are under way: try again in a few seconds")
    try:
        Courier(context.settings.notices, context.configs.url).deliver(channel, target, notice)
    except NoticeFailed as error:
        return str(error)
    finally:
        _AT_ONCE.release()
    return ""
