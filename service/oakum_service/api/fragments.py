"""/v1/fragments: calls for agents. Each agent's token is for its own fragment only."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from oakum_service.api.auth import OwnFragment
from oakum_service.api.context import Context, InContext
from oakum_service.api.report_inbox import ReportInbox
from oakum_service.api.revisions import Revisions
from oakum_service.control.directives import read_directive
from oakum_service.errors import NoLongerWanted
from oakum_worker.protocol import REPORT_INTERVAL, Directive, FragmentReport

router = APIRouter(prefix="/v1/fragments", tags=["fragments"])

LONGEST_WAIT_S = 30.0
"""For which a question for a directive may wait."""


@router.post("/{fragment_id}/report", status_code=HTTPStatus.NO_CONTENT)
async def take_report(fragment: OwnFragment, report: FragmentReport, request: Request, response: Response) -> None:
    """Store an agent's newest report. A report older than the stored one is ignored. Raises `NoLongerWanted` if
    the fragment has ended. The answer's header `Oakum-Report-Interval` says in how many seconds to report again
    where nothing urgent happens."""
    inbox = request.app.state.reports
    assert isinstance(inbox, ReportInbox)
    if not await asyncio.wrap_future(inbox.submit(fragment, report)):
        raise NoLongerWanted(f"fragment {fragment} has ended")
    response.headers[REPORT_INTERVAL] = report_interval(inbox, report)


@router.get("/{fragment_id}/directive", responses={HTTPStatus.NO_CONTENT: {"description": "nothing new"}})
async def wait_for_directive(
    fragment: OwnFragment,
    context: InContext,
    request: Request,
    response: Response,
    after: int = -1,
    wait_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S)] = 0.0,
) -> Directive | None:
    """Return the directive as soon as its revision is above `after`; answer with status 204 if none is within
    `wait_s` seconds."""
    revisions = request.app.state.revisions
    assert isinstance(revisions, Revisions)
    directive = await next_directive(context, revisions, fragment, after, time.monotonic() + wait_s)
    if directive is None:
        response.status_code = HTTPStatus.NO_CONTENT
    return directive


def report_interval(inbox: ReportInbox, report: FragmentReport) -> str:
    """What an answer to this report says: in how many seconds to report again."""
    return f"{inbox.interval_s(tells_progress=report.progress is not None):.3g}"


async def next_directive(
    context: Context, revisions: Revisions, fragment: str, after: int, until_s: float
) -> Directive | None:
    """The fragment's directive as soon as its revision is above `after`; None if that is not so before `until_s`,
    on the monotonic clock. Raises `NoLongerWanted` if the fragment has ended."""
    while await revisions.exceed(fragment, after, until_s - time.monotonic()):
        directive = await asyncio.to_thread(_read, context, fragment)
        if directive.revision > after:
            return directive
    return None


def _read(context: Context, fragment: str) -> Directive:
    with context.readers.begin() as session:
        return read_directive(session, fragment, context.configs.secret_of, context.generations)
