"""/v1/fragments: the agents' side of the API. Each agent may speak for its own fragment alone."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from oakum_service.api.auth import OwnFragment
from oakum_service.api.context import Context, InContext
from oakum_service.control.directives import read_directive
from oakum_service.db.models import Fragment, FragmentState, Report
from oakum_service.errors import Gone
from oakum_worker.protocol import Directive, FragmentReport

router = APIRouter(prefix="/v1/fragments", tags=["fragments"])

# A change of any of these is the controller's business at once; progress can wait for its next turn.
_URGENT = ("phase", "generation", "broken", "ranks", "failure", "signalled", "switches")


@router.post("/{fragment_id}/report", status_code=HTTPStatus.NO_CONTENT)
def take_report(fragment: OwnFragment, report: FragmentReport, context: InContext) -> None:
    """Take in all that an agent knows. An older report than one already here is ignored."""
    body = report.model_dump(mode="json")
    with context.reporters.begin() as session:
        owner = session.get(Fragment, fragment)
        if owner is None or owner.state == FragmentState.ENDED:
            raise Gone(f"fragment {fragment} has ended")
        row = _own_row(session, fragment)
        before = row.body
        row.received_at = time.time()
        if report.sequence > row.sequence:
            row.sequence, row.body = report.sequence, body
    if any(before.get(field) != body[field] for field in _URGENT):
        context.inbox.notify()


def _own_row(session: Session, fragment: str) -> Report:
    """The fragment's row, locked: two reports of one agent may come at the same moment, and also the first two."""
    if (row := session.get(Report, fragment, with_for_update=True)) is not None:
        return row
    on_postgresql = session.get_bind().dialect.name == "postgresql"
    insert = postgresql.insert(Report) if on_postgresql else sqlite.insert(Report)
    empty = {"fragment_id": fragment, "sequence": -1, "received_at": 0.0, "body": {}}
    session.execute(insert.values(empty).on_conflict_do_nothing())
    return session.get_one(Report, fragment, with_for_update=True)


@router.get("/{fragment_id}/directive", responses={HTTPStatus.NO_CONTENT: {"description": "nothing new"}})
async def wait_for_directive(
    fragment: OwnFragment,
    context: InContext,
    response: Response,
    after: int = -1,
    wait_s: Annotated[float, Query(ge=0, le=30)] = 0.0,
) -> Directive | None:
    """The directive as soon as its revision is above `after`; 204 when there is none within `wait_s` seconds."""
    deadline_s = time.monotonic() + wait_s
    while True:
        seen = context.outbox.version
        directive = await asyncio.to_thread(_read, context, fragment)
        if directive.revision > after:
            return directive
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or context.outbox.closed:
            response.status_code = HTTPStatus.NO_CONTENT
            return None
        await context.outbox.wait(seen, left_s)


def _read(context: Context, fragment: str) -> Directive:
    with context.readers.begin() as session:
        return read_directive(session, fragment)
