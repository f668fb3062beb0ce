"""/v1/hooks: reports of Slurm's hooks. Hooks wait for the answer, and jobs may wait for the hooks, so it must
be quick."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, Field, model_validator

from oakum_service.errors import ServiceError
from oakum_service.instruments import HOOK_S
from oakum_service.schedulers.port import HookKind
from oakum_service.schedulers.slurm.hooks.intake import SlurmHookIntake
from oakum_service.schedulers.slurm.hooks.missed import heard_of
from oakum_service.schedulers.slurm.hooks.report import Hook, HookReport, check_form, check_nodes, num_nodes

router = APIRouter(prefix="/v1/hooks", tags=["hooks"])

_MOST_AT_ONCE = 1000
_MOST_NODES_AT_ONCE = 1_000_000
"""Most nodes that the different lists of one request may name in all; all nodes of a cluster five times."""
_PATIENCE_S = 9.0
"""Longest time to answer in seconds. Hooks wait for much less, and the script that sends spooled events again
for 10 s."""


_Name = Annotated[str, Field(max_length=63, pattern=r"^[A-Za-z0-9_.-]*$")]
_Time = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class HookDocument(BaseModel):
    """The report of one hook. Unknown fields are ignored: the scripts may be newer than the service."""

    hook: Hook
    cluster: _Name = ""
    job_id: Annotated[int, Field(ge=1, lt=2**63)]
    restart: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    node: Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z0-9_.-]*$")] = ""
    """Name of the node on which the hook ran; empty for the head node."""
    nodes: Annotated[str, Field(max_length=200_000), AfterValidator(check_form)] = ""
    """The job's nodes, folded as Slurm writes them."""
    uid: Annotated[int, Field(ge=0, lt=2**32)] = 0
    partition: Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z0-9_.+:@-]*$")] = ""
    start_at: _Time | None = None
    end_at: _Time | None = None
    at: _Time | None = None
    """When the hook ran, Unix seconds by its own clock; without it, now."""

    @model_validator(mode="after")
    def _ran_where_its_kind_runs(self) -> HookDocument:
        if self.hook.on_nodes != bool(self.node):
            place = "on a node: send its name as `node`" if self.hook.on_nodes else "on no node: leave `node` out"
            raise ValueError(f"{self.hook} runs {place}")
        return self

    def report(self, now: float) -> HookReport:
        """The report as a `HookReport`. A missing time of the hook's run, or one in the future from a clock that
        is ahead, becomes `now`."""
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
    """A request body with reports of hooks: of one hook, or all that were kept in a spool."""

    events: Annotated[list[HookDocument], Field(max_length=_MOST_AT_ONCE)]


class HeardHooks(BaseModel):
    """Which hooks have told of one job."""

    job_id: int
    heard: dict[HookKind, list[Hook]]
    """Empty for a job of which none has told."""


def _intake(request: Request) -> SlurmHookIntake:
    """Who takes the reports that come to this app."""
    intake = request.app.state.hook_intakes["slurm"]
    assert isinstance(intake, SlurmHookIntake)
    return intake


def _check_nodes(events: Sequence[HookDocument]) -> None:
    """Raise `RequestValidationError` if a node list is not valid, or all of them name too many nodes."""
    lists = {event.nodes: number for number, event in reversed([*enumerate(events)])}
    if (total := sum(map(num_nodes, lists))) > _MOST_NODES_AT_ONCE:
        text = f"lists of {total:,} nodes in one request: send at most {_MOST_NODES_AT_ONCE:,} at once"
        raise RequestValidationError([{"loc": ("body", "events"), "msg": text, "type": "value_error"}])
    for nodes, number in lists.items():
        try:
            check_nodes(nodes)
        except ValueError as error:
            place = ("body", "events", number, "nodes")
            raise RequestValidationError([{"loc": place, "msg": str(error), "type": "value_error"}]) from error


@router.post("/slurm", status_code=HTTPStatus.NO_CONTENT)
async def take_hook_events(documents: HookDocuments, request: Request) -> None:
    """Record what hooks report. Each report counts once, however often it is sent; an empty list only tests the
    token."""
    if not documents.events:
        return
    await asyncio.to_thread(_check_nodes, documents.events)
    now = time.time()
    written = _intake(request).writer.submit([document.report(now) for document in documents.events])
    try:
        with HOOK_S.time():
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(written)), _PATIENCE_S)
    except TimeoutError as error:
        raise ServiceError("the database is busy: send the events again later") from error


@router.get("/slurm/{job_id}")
def show_heard_hooks(job_id: Annotated[int, Path(ge=1, lt=2**63)], request: Request) -> HeardHooks:
    """Say which hooks have told of a job of Slurm's: an admin who has installed them wants to know whether Slurm
    runs them."""
    with _intake(request).readers.begin() as session:
        heard = heard_of(session, [job_id]).get(job_id, {})
    return HeardHooks.model_validate({"job_id": job_id, "heard": heard})
