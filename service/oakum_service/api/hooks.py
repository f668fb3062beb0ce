"""/v1/hooks: what Slurm's hooks tell. They wait for the answer, and jobs may wait for them: it has to be quick."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, Field, model_validator

from oakum_service.api.auth import Poster
from oakum_service.api.context import Context
from oakum_service.control.hook_events import HookJournal
from oakum_service.control.hook_report import Hook, HookReport, check_nodes
from oakum_service.errors import ServiceError
from oakum_service.schedulers.slurm.hook_event import HookEvent, HookListener

router = APIRouter(prefix="/v1/hooks", tags=["hooks"])

_MOST_AT_ONCE = 1000
_PATIENCE_S = 9.0
"""Nobody waits longer for the answer: hooks wait for much less, and who sends kept events again for 10 s."""


_Name = Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9_.-]*$")]
_Time = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class HookDocument(BaseModel):
    """What one hook tells. Fields not known here are left alone: scripts may be newer than the service."""

    hook: Hook
    cluster: _Name = ""
    job_id: Annotated[int, Field(ge=1, lt=2**63)]
    restart: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    node: Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z0-9_.-]*$")] = ""
    """Where the hook ran; empty on the head node."""
    nodes: Annotated[str, Field(max_length=200_000), AfterValidator(check_nodes)] = ""
    """The job's, folded as Slurm does."""
    uid: Annotated[int, Field(ge=0, lt=2**32)] = 0
    partition: Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z0-9_.+:@-]*$")] = ""
    start_at: _Time | None = None
    end_at: _Time | None = None
    at: _Time | None = None
    """When the hook ran, by its own clock; without it, now."""

    @model_validator(mode="after")
    def _ran_where_its_kind_runs(self) -> HookDocument:
        if self.hook.on_nodes != bool(self.node):
            place = "on a node: send its name as `node`" if self.hook.on_nodes else "on no node: leave `node` out"
            raise ValueError(f"{self.hook} runs {place}")
        return self

    def report(self, now: float) -> HookReport:
        """What it says. A clock that is ahead says now."""
        return HookReport(
            self.hook,
            self.cluster,
            self.job_id,
            self.restart,
            self.node,
            self.nodes,
            self.uid,
            self.partition,
            self.start_at,
            self.end_at,
            now if self.at is None else min(self.at, now),
        )


class HookDocuments(BaseModel):
    """One hook's event, or a spool's."""

    events: Annotated[list[HookDocument], Field(max_length=_MOST_AT_ONCE)]


def open_journal(context: Context) -> HookJournal:
    """The journal of the app over this context."""

    def tell(event: HookEvent) -> None:
        if isinstance(context.scheduler, HookListener):
            context.scheduler.on_hook(event)
        context.inbox.notify()

    return HookJournal(context.sessions, tell)


@router.post("/slurm", status_code=HTTPStatus.NO_CONTENT)
async def take_hook_events(documents: HookDocuments, _: Poster, request: Request) -> None:
    """Take in what hooks tell. Each is counted once, however often it is sent; an empty list tries the token."""
    journal = request.app.state.hooks
    assert isinstance(journal, HookJournal)
    if not documents.events:
        return
    now = time.time()
    written = journal.submit([document.report(now) for document in documents.events])
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(written)), _PATIENCE_S)
    except TimeoutError as error:
        raise ServiceError("the database is busy: send the events again later") from error
