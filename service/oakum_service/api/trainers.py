"""/v1/trainers: submit, show, change and cancel trainers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from sqlalchemy import func, select
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
from oakum_service.api.auth import Principal, Role, User, Viewer
from oakum_service.api.context import Context, InContext
from oakum_service.api.hold import hold_view
from oakum_service.api.idempotency import IdempotencyKey, answer_once, is_answered
from oakum_service.api.ownership import check_may_change, may_read, visible_view
from oakum_service.api.paging import Before, Place
from oakum_service.api.plain_values import odd_value
from oakum_service.api.preconditions import ETAG, IfMatch, check_if_match, etag_of
from oakum_service.api.problems import problem_response
from oakum_service.api.quotas import check_quota, check_storage
from oakum_service.api.schemas.submissions import DryRunRequest, DryRunView, SpecDocument, SpecText
from oakum_service.api.schemas.trainers import (
    PauseRequest,
    TrainerChange,
    TrainerList,
    TrainerView,
)
from oakum_service.api.trainer_search import MOST_ENDED, Asked, ended_trainers, live_trainers
from oakum_service.api.views import dry_run_view, find_trainer, trainer_view, trainer_views
from oakum_service.control import dry_run
from oakum_service.control.new_trainers import GivenState, add_trainer, add_trainer_from
from oakum_service.control.restart_points import check_epochs, set_totals
from oakum_service.control.retrying import retry, way_on
from oakum_service.db import event_log
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import Conflict, RequestError
from oakum_service.identity import audit
from oakum_service.logs.fields import about
from oakum_service.orders import hold, pause
from oakum_service.orders.annotations import make_findable
from oakum_service.states import TrainerState
from oakum_solver.errors import ProblemError
from oakum_worker.errors import SpecError
from oakum_worker.spec import TrainerSpec, explain
from oakum_worker.spec_text import lines_of, parse_document

router = APIRouter(prefix="/v1/trainers", tags=["trainers"])

BeginFrom = Annotated[
    str | None,
    Query(
        max_length=80,
        description="Name or id of a trainer of the same user that has ended: the new one begins from its newest "
        "durable checkpoint; with `/STEP` or `/best` added, from the one of that step, or the best.",
    ),
]

_TOLD_OF_NOTES = 200
"""Characters of notes that the audit log keeps."""


@router.get("")
def list_trainers(
    context: InContext,
    viewer: Viewer,
    state: TrainerState | None = None,
    user: Annotated[str | None, Query(max_length=63, description="trainers of this user only")] = None,
    live: Annotated[bool, Query(description="live trainers only, none that has ended")] = False,
    tag: Annotated[str | None, Query(max_length=40, description="trainers with this tag only")] = None,
    limit: Annotated[
        int, Query(ge=1, le=5000, description=f"most trainers that have ended; {MOST_ENDED} of more")
    ] = 200,
    before: Before = None,
) -> TrainerList:
    """List the trainers, the newest last: all that are live and, unless only these are asked for, the newest that
    have ended; `before` gives those of them that were submitted earlier. Those of other users are without what
    only their users may see, and are not found by their tags."""
    reader = viewer.name if tag is not None and viewer.role == Role.USER else None
    asked = Asked(live, state, user, tag, reader, min(limit, MOST_ENDED), before)
    rows, whole = context.lists.get(("trainers", *asked), lambda: _read_list(context, asked))
    visible = [visible_view(viewer, row, view) for row, view in zip(rows, whole.trainers, strict=True)]
    return whole.model_copy(update={"trainers": visible})


def _read_list(context: Context, asked: Asked) -> tuple[Sequence[Trainer], TrainerList]:
    """The rows of the trainers that are asked for, and their list as whoever may read all of them sees it."""
    with context.readers.begin() as session:
        held = hold.held(session)
        past, has_more = ended_trainers(session, asked)
        present = live_trainers(session, asked)
        rows = sorted([*past, *present], key=lambda row: (row.submitted_at, row.id))
        views = trainer_views(session, rows, context.circumstances())
    return rows, TrainerList(
        trainers=[_with_folder(context, view) for view in views],
        next=str(Place(past[-1].submitted_at, past[-1].id)) if has_more else None,
        hold=None if held is None else hold_view(held),
        fault=context.writability.fault,
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
    return SpecDocument(spec=document, lines=lines_of(request.text))


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
            prospect = dry_run.solve_for_candidate(problem, observed, candidate, request.total_samples)
        except ProblemError as error:
            raise Conflict(f"no plan can be made with this trainer: {error}") from error
    return JSONResponse(dry_run_view(spec.name, prospect, held=held).model_dump(mode="json"))


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
    return trainer_view(session, trainer, context.circumstances())


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
    epochs. With other sizes, bounds that are not given follow from them. Tags and notes can also be changed after
    its end, and lead to no new plan."""
    if change.priority is not None:
        check_priority(change.priority, user)

    is_annotation = change.is_annotation

    def carry_out() -> TrainerView:
        trainer = (_seen if is_annotation else _live)(session, ref, user, if_match)
        before = trainer.spec.model_dump(mode="json")
        wanted = change.for_spec(trainer.spec)
        if change.epochs is not None:
            check_epochs(session, trainer, change.epochs)
        trainer.spec = wanted.applied_to(trainer.spec)
        if wanted.tags is not None:
            make_findable(session, trainer)
        if change.slurm is not None:
            check_slurm(trainer.spec, context)
        if change.epochs is not None:
            set_totals(trainer, before["epochs"])
        if change.weight is not None:
            check_quota(session, context, trainer.spec, user, is_new=False)
        changed = wanted.given
        kept = {"before": {name: before[name] for name in changed}, "after": changed}
        _record(session, user, "changed", trainer, **{name: _shortened(told) for name, told in kept.items()})
        told = f"{user.name} changes {_listed(changed)}{_until_when(session, trainer, change)}"
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
    (context.news_for_readers if is_annotation else context.news_for_controller).notify()
    return response


def _shortened(changed: Mapping[str, Any]) -> dict[str, Any]:
    """What has changed, with the beginning of notes in place of all."""
    notes = changed.get("notes", "")
    return {**changed, "notes": f"{notes[:_TOLD_OF_NOTES]}…"} if len(notes) > _TOLD_OF_NOTES else {**changed}


def _listed(changed: Mapping[str, Any]) -> str:
    """What has changed, by the names of the spec's fields: `max_nodes to 4, slurm.qos to "night"`. Of notes, which
    are long, no more than that."""
    parts: list[tuple[str, Any]] = []
    for name, value in changed.items():
        inner = value if isinstance(value, Mapping) else {"": value}
        parts += [(f"{name}.{key}".rstrip("."), each) for key, each in inner.items()]
    return ", ".join(
        name if name == "notes" else f"{name} to {json.dumps(value, default=str)}" for name, value in parts
    )


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
    trainer = _seen(session, ref, user, if_match)
    if TrainerState(trainer.state).ended:
        raise Conflict(
            f"trainer {trainer.name!r} is {trainer.state} and cannot be changed any more: {way_on(trainer)}"
        )
    return trainer


def _seen(session: Session, ref: str, user: Principal, if_match: str | None) -> Trainer:
    """The trainer, if the user may change it, and it is what the user has seen; else raises the error that says
    why it is not changed."""
    trainer = find_trainer(session, ref)
    check_may_change(user, trainer)
    check_if_match(if_match, trainer)
    return trainer
