"""/v1/trainers: submit, look at, change and cancel trainers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.api.auth import Principal, Role, User, Viewer
from oakum_service.api.context import InContext
from oakum_service.api.idempotency import IdempotencyKey, answer_once
from oakum_service.api.logs import read_log
from oakum_service.api.problems import problem_response
from oakum_service.api.schemas import (
    Explanation,
    LogText,
    Series,
    SeriesPoint,
    TrainerChange,
    TrainerList,
    TrainerView,
)
from oakum_service.api.views import explanation, find_trainer, trainer_view, trainer_views
from oakum_service.control import journal
from oakum_service.control.submission import add_trainer
from oakum_service.db.models import ProgressSample, Trainer
from oakum_service.errors import Conflict, Forbidden
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec, explain

router = APIRouter(prefix="/v1/trainers", tags=["trainers"])

_ENDED = [state for state in TrainerState if state.ended]


@router.get("")
def list_trainers(context: InContext, _: Viewer, state: TrainerState | None = None) -> TrainerList:
    """All trainers, the newest last."""
    query = select(Trainer).order_by(Trainer.submitted_at, Trainer.id)
    if state is not None:
        query = query.where(Trainer.state == state)
    with context.readers.begin() as session:
        return TrainerList(trainers=trainer_views(session, list(session.execute(query).scalars())))


@router.post("", status_code=HTTPStatus.CREATED, response_model=TrainerView)
def submit_trainer(
    context: InContext,
    user: User,
    document: Annotated[dict[str, Any], Body()],
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Submit a trainer; the body is the spec."""
    try:
        spec = TrainerSpec.model_validate(document)
    except ValidationError as error:
        lines = explain(error)
        return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, f"the spec cannot be accepted: {lines[0]}", lines)
    _check_priority(spec, user)
    with context.sessions.begin() as session:
        response = answer_once(
            session,
            user,
            key,
            spec.model_dump(mode="json"),
            HTTPStatus.CREATED,
            lambda: _insert(session, spec, user),
        )
    context.inbox.notify()
    return response


def _check_priority(spec: TrainerSpec, user: Principal) -> None:
    if spec.priority > 0 and user.role < Role.ADMIN:
        raise Forbidden(
            f"priority {spec.priority} needs the role admin; this token has {user.role.name.lower()}: "
            "submit with a priority of 0 or below, or ask an administrator to submit it"
        )


def _insert(session: Session, spec: TrainerSpec, user: Principal) -> TrainerView:
    taken = session.execute(select(Trainer).where(Trainer.name == spec.name, Trainer.state.not_in(_ENDED)))
    if (other := taken.scalars().first()) is not None:
        raise Conflict(
            f"a trainer named {spec.name!r} is {other.state}: choose another name or `oakum cancel {spec.name}`"
        )
    trainer = add_trainer(session, spec, user.name)
    session.flush()
    return trainer_view(session, trainer)


@router.get("/{ref}")
def show_trainer(ref: str, context: InContext, _: Viewer) -> TrainerView:
    """One trainer, by id or by name (the newest of that name)."""
    with context.readers.begin() as session:
        return trainer_view(session, find_trainer(session, ref))


@router.patch("/{ref}", response_model=TrainerView)
def change_trainer(
    ref: str, change: TrainerChange, context: InContext, user: User, key: IdempotencyKey = None
) -> JSONResponse:
    """Change a live trainer's sizes or weight."""

    def carry_out() -> TrainerView:
        trainer = _live(session, ref)
        spec = trainer.spec | change.model_dump(exclude_none=True)
        trainer.spec = TrainerSpec.model_validate(spec).model_dump(mode="json")
        journal.record(session, "trainer.changed", trainer.name, f"{change.model_dump(exclude_none=True)}")
        return trainer_view(session, trainer)

    try:
        with context.sessions.begin() as session:
            request = {"ref": ref, **change.model_dump(exclude_none=True)}
            response = answer_once(session, user, key, request, HTTPStatus.OK, carry_out)
    except ValidationError as error:
        lines = explain(error)
        return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, f"cannot be changed so: {lines[0]}", lines)
    context.inbox.notify()
    return response


@router.post("/{ref}/cancel", response_model=TrainerView)
def cancel_trainer(ref: str, context: InContext, user: User, key: IdempotencyKey = None) -> JSONResponse:
    """End a trainer; its nodes are given back at the next step boundary."""

    def carry_out() -> TrainerView:
        trainer = _live(session, ref)
        trainer.cancel_requested = True
        return trainer_view(session, trainer)

    with context.sessions.begin() as session:
        response = answer_once(session, user, key, {"cancel": ref}, HTTPStatus.OK, carry_out)
    context.inbox.notify()
    return response


def _live(session: Session, ref: str) -> Trainer:
    trainer = find_trainer(session, ref)
    if TrainerState(trainer.state).ended:
        raise Conflict(f"trainer {trainer.name!r} is {trainer.state} and cannot be changed any more")
    return trainer


@router.get("/{ref}/series")
def show_series(
    ref: str, context: InContext, _: Viewer, limit: Annotated[int, Query(ge=1, le=5000)] = 600
) -> Series:
    """The newest samples of a trainer's progress, in order of time."""
    with context.readers.begin() as session:
        trainer = find_trainer(session, ref)
        rows = session.execute(
            select(ProgressSample)
            .where(ProgressSample.trainer_id == trainer.id)
            .order_by(ProgressSample.id.desc())
            .limit(limit)
        ).scalars()
        points = [
            SeriesPoint(at=row.at, step=row.step, nodes=row.nodes, loss=row.loss, samples_per_s=row.samples_per_s)
            for row in rows
        ]
    return Series(points=points[::-1])


@router.get("/{ref}/logs")
def show_logs(
    ref: str, context: InContext, _: Viewer, tail: Annotated[int, Query(ge=1, le=10_000)] = 200
) -> LogText:
    """The newest lines that the trainer's fragments wrote."""
    with context.readers.begin() as session:
        trainer = find_trainer(session, ref)
        return LogText(lines=read_log(session, context.settings.fragments_dir, trainer.id, tail))


@router.get("/{ref}/explain")
def explain_trainer(ref: str, context: InContext, _: Viewer) -> Explanation:
    """Why the trainer has the nodes it has."""
    with context.readers.begin() as session:
        return explanation(session, find_trainer(session, ref))
