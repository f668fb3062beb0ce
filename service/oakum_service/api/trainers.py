"""/v1/trainers: submit, show, change and cancel trainers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from sqlalchemy import Select, Text, cast, func, select
from sqlalchemy.orm import Session

from oakum_service.api.acceptance import (
    acceptable,
    beginning,
    check_priority,
    check_slurm,
    give_beginning,
    missing_checkpoints,
    refuse_taken,
    unacceptable,
)
from oakum_service.api.auth import Principal, User, Viewer
from oakum_service.api.context import Context, InContext
from oakum_service.api.hold import hold_view
from oakum_service.api.idempotency import IdempotencyKey, answer_once, is_answered
from oakum_service.api.ownership import check_may_change, may_read, visible_view
from oakum_service.api.paging import Before, Place, older_than, place
from oakum_service.api.plain_values import odd_value
from oakum_service.api.preconditions import ETAG, IfMatch, check_if_match, etag_of
from oakum_service.api.problems import problem_response
from oakum_service.api.quotas import check_quota, check_storage
from oakum_service.api.schemas.hold import HoldView
from oakum_service.api.schemas.submissions import DryRunRequest, DryRunView, SpecDocument, SpecText
from oakum_service.api.schemas.trainers import (
    PauseRequest,
    TrainerChange,
    TrainerList,
    TrainerView,
)
from oakum_service.api.views import dry_run_view, find_trainer, trainer_view, trainer_views
from oakum_service.control import dry_run
from oakum_service.control.new_trainers import GivenState, add_trainer, add_trainer_from
from oakum_service.control.restart_points import check_epochs, set_totals
from oakum_service.control.retrying import retry
from oakum_service.db import event_log
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer, live_of
from oakum_service.errors import Conflict, RequestError
from oakum_service.identity import audit
from oakum_service.logs.fields import about
from oakum_service.orders import hold, pause
from oakum_service.states import LIVE_STATES, TrainerState
from oakum_solver.errors import ProblemError
from oakum_worker.errors import SpecError
from oakum_worker.spec import TrainerSpec, explain
from oakum_worker.spec_text import parse_document

router = APIRouter(prefix="/v1/trainers", tags=["trainers"])

BeginFrom = Annotated[
    str | None,
    Query(
        max_length=80,
        description="Name or id of a trainer of the same user that has ended: the new one begins from its newest "
        "durable checkpoint; with `/STEP` or `/best` added, from the one of that step, or the best.",
    ),
]

_MOST_ENDED = 500
"""Documents of trainers that have ended in one answer: each takes about half a millisecond."""
_MOST_CHARACTERS = 4_000_000
"""Of these trainers' specs and messages in one answer."""


@router.get("")
def list_trainers(
    context: InContext,
    viewer: Viewer,
    state: TrainerState | None = None,
    user: Annotated[str | None, Query(max_length=63, description="trainers of this user only")] = None,
    limit: Annotated[
        int, Query(ge=1, le=5000, description=f"most trainers that have ended; {_MOST_ENDED} of more")
    ] = 200,
    before: Before = None,
) -> TrainerList:
    """List the trainers, the newest last: all that are live, and the newest that have ended; `before` gives those
    that ended earlier. Those of other users are without what only their users may see."""
    asked = (state, user, min(limit, _MOST_ENDED), before)
    listed = context.lists.get(("trainers", *asked), lambda: _read_list(context, *asked))
    views = [
        visible_view(viewer, row, _with_folder(context, view))
        for row, view in zip(listed.rows, listed.views, strict=True)
    ]
    return TrainerList(
        trainers=views,
        next=listed.next,
        hold=listed.hold,
        fault=context.writability.fault,
    )


@dataclass(frozen=True)
class _Listed:
    """A list of trainers as whoever may read everything sees it."""

    rows: Sequence[Trainer]
    views: Sequence[TrainerView]
    next: str | None
    hold: HoldView | None


def _read_list(
    context: Context, state: TrainerState | None, user: str | None, limit: int, before: str | None
) -> _Listed:
    query = select(Trainer).order_by(Trainer.submitted_at.desc(), Trainer.id.desc())
    if state is not None:
        query = query.where(Trainer.state == state)
    # Not `in` the other states, by which SQLite would read all that have ended, to sort them.
    ended, lasting = query.where(Trainer.state.not_in(LIVE_STATES)), query.where(Trainer.state.in_(LIVE_STATES))
    if user is not None:
        ended, lasting = ended.where(Trainer.user_name == user), query.where(*live_of(user))
    if before is not None:
        ended = ended.where(older_than(Trainer.submitted_at, Trainer.id, place(before)))
    with context.readers.begin() as session:
        held = hold.held(session)
        past, has_more = _page(session, ended, limit)
        live = [] if before else session.execute(lasting).scalars().all()
        rows = sorted([*past, *live], key=lambda row: (row.submitted_at, row.id))
        views = trainer_views(session, rows, context.circumstances())
    return _Listed(
        rows,
        views,
        next=str(Place(past[-1].submitted_at, past[-1].id)) if has_more else None,
        hold=None if held is None else hold_view(held),
    )


@router.post("", status_code=HTTPStatus.CREATED, response_model=TrainerView)
def submit_trainer(
    context: InContext,
    user: User,
    document: Annotated[dict[str, Any], Body()],
    key: IdempotencyKey = None,
    begin_from: BeginFrom = None,
) -> JSONResponse:
    """Submit a trainer; the body is its spec."""
    try:
        spec = acceptable(document, user, context)
    except ValidationError as error:
        return unacceptable(error)
    given = None
    if not is_answered(context, user, key):
        given = give_beginning(spec, user, context, begin_from)
    with context.sessions.begin() as session:
        response = answer_once(
            session,
            user,
            key,
            spec.model_dump(mode="json") | ({} if begin_from is None else {"begin_from": begin_from}),
            HTTPStatus.CREATED,
            lambda: _insert(session, spec, user, context, begin_from, given),
        )
    context.news_for_controller.notify()
    return response


@router.post("/check", status_code=HTTPStatus.NO_CONTENT)
def check_trainer(
    context: InContext, user: User, document: Annotated[dict[str, Any], Body()], begin_from: BeginFrom = None
) -> Response:
    """Answer as submitting this spec would, but submit nothing: 204 where it would be accepted now."""
    try:
        spec = acceptable(document, user, context)
    except ValidationError as error:
        return unacceptable(error)
    with context.readers.begin() as session:
        refuse_taken(session, spec, user)
        check_quota(session, context, spec, user, is_new=True)
    check_storage(context, user)
    if begin_from is not None:
        beginning(spec, user, context, begin_from)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.post("/read")
def read_document(_: User, request: SpecText) -> SpecDocument:
    """Read the text of a spec, YAML or JSON, into its fields, without checking or submitting them."""
    try:
        document = jsonable_encoder(parse_document(request.text))
    except (SpecError, ValueError) as error:
        raise RequestError(f"the spec: {error}") from error
    if (found := odd_value(document)) is not None:
        place, problem = found
        raise RequestError(f"the spec: {'.'.join(map(str, place))}: {problem}")
    return SpecDocument(spec=document)


@router.post("/dry-run", response_model=DryRunView)
def dry_run_trainer(context: InContext, user: User, request: DryRunRequest) -> Response:
    """Return the plan that would be made if the trainer were submitted now, without submitting it. One dry run
    is computed at a time."""
    try:
        spec = acceptable(request.spec, user, context)
    except ValidationError as error:
        return unacceptable(error)
    check_storage(context, user)
    with context.trial_plans.one():
        with context.readers.begin() as session:
            refuse_taken(session, spec, user)
            check_quota(session, context, spec, user, is_new=True)
            problem, observed, candidate = dry_run.pose_with_candidate(session, context.settings, spec, user.name)
            held = hold.held(session) is not None
        try:
            prospect = dry_run.solve_for_candidate(problem, observed, candidate, spec, request.total_samples)
        except ProblemError as error:
            raise Conflict(f"no plan can be made with this trainer: {error}") from error
    return JSONResponse(dry_run_view(spec.name, prospect, held=held).model_dump(mode="json"))


def _page(session: Session, query: Select[Trainer], limit: int) -> tuple[list[Trainer], bool]:
    """The first `limit` of the query's trainers, or those that have `_MOST_CHARACTERS` together, but at least one;
    and whether there is another one."""
    told = (Trainer.spec, Trainer.message, Trainer.progress, Trainer.crash)
    lengths = [func.coalesce(func.length(cast(column, Text)), 0) for column in told]
    sized = session.execute(query.with_only_columns(Trainer.id, *lengths).limit(limit + 1)).all()
    sums = itertools.accumulate(sum(row[1:]) for row in sized[:limit])
    ids = [row.id for row, size in zip(sized, sums, strict=False) if size <= _MOST_CHARACTERS or row is sized[0]]
    found = {row.id: row for row in session.scalars(select(Trainer).where(Trainer.id.in_(ids)))}
    return [found[id_] for id_ in ids], len(sized) > len(ids)


def _insert(
    session: Session,
    spec: TrainerSpec,
    user: Principal,
    context: Context,
    begin_from: str | None,
    given: GivenState | None,
) -> TrainerView:
    refuse_taken(session, spec, user)
    check_quota(session, context, spec, user, is_new=True)
    if begin_from is None:
        trainer = add_trainer(session, spec, user.name)
    elif given is None:
        raise Conflict("the answer that this Idempotency-Key had is too old: send the request again")
    else:
        trainer = add_trainer_from(session, spec, user.name, given)
    session.flush()
    _record(session, user, "submitted", trainer, **({"begin_from": begin_from} if begin_from else {}))
    return trainer_view(session, trainer)


def _record(session: Session, user: Principal, action: str, trainer: Trainer, **details: Any) -> None:
    """Add to the audit log what the user does to the trainer."""
    audit.record(
        session, user.actor, f"trainer.{action}", trainer.name, trainer.user_name, id=trainer.id, **details
    )


@router.get("/{ref}")
def show_trainer(ref: str, context: InContext, viewer: Viewer, response: Response) -> TrainerView:
    """Show one trainer, by id or by name (the newest of that name). The header `ETag` changes with what requests
    change about the trainer, and may be sent with them as `If-Match`."""
    with context.readers.begin() as session:
        trainer = find_trainer(session, ref)
        view = trainer_view(session, trainer, context.circumstances())
    if may_read(viewer, trainer):
        response.headers[ETAG] = etag_of(trainer)
    return visible_view(viewer, trainer, _with_folder(context, view))


def _with_folder(context: Context, view: TrainerView) -> TrainerView:
    """The document with the folder of the trainer's checkpoints, if there are any."""
    if view.checkpoint_step is None:
        return view
    folder = context.files.checkpoints(view.user).of(view.id)
    return view.model_copy(update={"checkpoint_folder": str(folder)})


@router.patch("/{ref}", response_model=TrainerView)
def change_trainer(
    ref: str,
    change: TrainerChange,
    context: InContext,
    user: User,
    key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> JSONResponse:
    """Change a live trainer's numbers of nodes, weight, priority or Slurm options; while it is paused, also its
    epochs. With other sizes, bounds that are not given follow from them."""
    if change.priority is not None:
        check_priority(change.priority, user)

    def carry_out() -> TrainerView:
        trainer = _live(session, ref, user, if_match)
        before = trainer.spec.model_dump(mode="json")
        if change.epochs is not None:
            check_epochs(session, trainer, change.epochs)
        trainer.spec = change.applied_to(trainer.spec)
        if change.slurm is not None:
            check_slurm(trainer.spec, context)
        if change.epochs is not None:
            set_totals(trainer, before["epochs"])
        if change.weight is not None:
            check_quota(session, context, trainer.spec, user, is_new=False)
        changed = change.given
        _record(session, user, "changed", trainer, before={name: before[name] for name in changed}, after=changed)
        told = f"{user.name} changes {changed}{_until_when(session, trainer, change)}"
        with about(trainer=trainer.id):
            event_log.record(session, "trainer.changed", trainer.name, told)
        return trainer_view(session, trainer, context.circumstances())

    try:
        with context.sessions.begin() as session:
            request = {"ref": ref, **change.given}
            response = answer_once(session, user, key, request, HTTPStatus.OK, carry_out)
            response.headers[ETAG] = etag_of(find_trainer(session, ref))
    except ValidationError as error:
        lines = explain(error)
        return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, f"cannot be changed so: {lines[0]}", lines)
    context.news_for_controller.notify()
    return response


def _until_when(session: Session, trainer: Trainer, change: TrainerChange) -> str:
    """For other Slurm options: how many fragments keep those with which they were submitted."""
    own = select(func.count()).select_from(Fragment).where(Fragment.trainer_id == trainer.id, Fragment.is_live)
    if change.slurm is None or not (live := session.scalar(own)):
        return ""
    keep = "1 fragment that is there keeps" if live == 1 else f"{live} fragments that are there keep"
    return f"; {keep} what the job was submitted with"


@router.post("/{ref}/cancel", response_model=TrainerView)
def cancel_trainer(
    ref: str, context: InContext, user: User, key: IdempotencyKey = None, if_match: IfMatch = None
) -> JSONResponse:
    """End a trainer; its nodes are given back at the next step boundary."""

    def carry_out() -> TrainerView:
        trainer = _live(session, ref, user, if_match)
        trainer.cancel_requested = True
        with about(trainer=trainer.id):
            event_log.record(session, "trainer.cancelling", trainer.name, f"{user.name} cancels it")
        _record(session, user, "cancelled", trainer)
        return trainer_view(session, trainer, context.circumstances())

    with context.sessions.begin() as session:
        response = answer_once(session, user, key, {"cancel": ref}, HTTPStatus.OK, carry_out)
        response.headers[ETAG] = etag_of(find_trainer(session, ref))
    context.news_for_controller.notify()
    return response


@router.put("/{ref}/pause")
def pause_trainer(
    ref: str,
    request: PauseRequest,
    context: InContext,
    user: User,
    response: Response,
    if_match: IfMatch = None,
) -> TrainerView:
    """Pause a live trainer: its fragments checkpoint and leave, and it gets no node until the pause ends."""
    with context.sessions.begin() as session:
        trainer = _live(session, ref, user, if_match)
        pause.begin(session, trainer, request.reason, user.name)
        _record(session, user, "paused", trainer, reason=request.reason)
        response.headers[ETAG] = etag_of(trainer)
        view = trainer_view(session, trainer, context.circumstances())
    context.news_for_controller.notify()
    return view


@router.delete("/{ref}/pause")
def unpause_trainer(
    ref: str, context: InContext, user: User, response: Response, if_match: IfMatch = None
) -> TrainerView:
    """End a live trainer's pause, so that the planner grants it nodes again; no error if it is not paused."""
    with context.sessions.begin() as session:
        trainer = _live(session, ref, user, if_match)
        if pause.end(session, trainer, user.name):
            _record(session, user, "unpaused", trainer)
        response.headers[ETAG] = etag_of(trainer)
        view = trainer_view(session, trainer, context.circumstances())
    context.news_for_controller.notify()
    return view


@router.post("/{ref}/retry", response_model=TrainerView)
def retry_trainer(
    ref: str, context: InContext, user: User, key: IdempotencyKey = None, if_match: IfMatch = None
) -> JSONResponse:
    """Let a trainer that has failed or was cancelled wait for nodes again; its crashes until now no longer count.
    It goes on from its newest durable checkpoint, or from its beginning if it has written none."""

    gone = None if is_answered(context, user, key) else missing_checkpoints(ref, user, context)

    def carry_out() -> TrainerView:
        trainer = find_trainer(session, ref)
        check_may_change(user, trainer)
        check_if_match(if_match, trainer)
        if TrainerState(trainer.state).ended:
            refuse_taken(session, trainer.spec, user)
            check_quota(session, context, trainer.spec, user, is_new=True)
        retry(session, trainer, user.name, time.time(), gone)
        _record(session, user, "retried", trainer)
        return trainer_view(session, trainer, context.circumstances())

    with context.sessions.begin() as session:
        response = answer_once(session, user, key, {"retry": ref}, HTTPStatus.OK, carry_out)
        response.headers[ETAG] = etag_of(find_trainer(session, ref))
    context.news_for_controller.notify()
    return response


def _live(session: Session, ref: str, user: Principal, if_match: str | None) -> Trainer:
    """The trainer, if it is live, the user may change it, and it is what the user has seen; else raises the error
    that says why it is not changed."""
    trainer = find_trainer(session, ref)
    check_may_change(user, trainer)
    check_if_match(if_match, trainer)
    if TrainerState(trainer.state).ended:
        raise Conflict(f"trainer {trainer.name!r} is {trainer.state} and cannot be changed any more")
    return trainer
