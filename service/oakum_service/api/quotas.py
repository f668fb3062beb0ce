"""/v1/quotas: what users may have, and what they have."""

from __future__ import annotations

import dataclasses
import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.api.auth import Admin, Principal, Role, Viewer
from oakum_service.api.context import Context, InContext
from oakum_service.api.schemas.quotas import QuotaLimits, QuotaList, QuotaUse, QuotaView
from oakum_service.db.models.callers import QuotaRecord
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import Conflict, Forbidden
from oakum_service.identity import audit
from oakum_service.orders import quotas
from oakum_service.orders.live_settings import current
from oakum_service.states import LIVE_STATES
from oakum_worker.spec import TrainerSpec

router = APIRouter(prefix="/v1/quotas", tags=["quotas"])

_UserName = Annotated[
    str, Path(max_length=63, pattern=r"^[^\x00-\x1f\x7f]+$", description="name of the user's tokens")
]


@router.get("")
def list_quotas(context: InContext, viewer: Viewer) -> QuotaList:
    """List the quotas, and what is used of them, of the users who have live trainers or a quota of their own.
    Users see their own only."""
    with context.readers.begin() as session:
        users = [viewer.name] if viewer.role is Role.USER else _users(session)
        return QuotaList(quotas=[_view(session, context, user) for user in users])


@router.get("/{user}")
def show_quota(user: _UserName, context: InContext, viewer: Viewer) -> QuotaView:
    """Show one user's quota and what is used of it, checkpoints included. Users see their own only."""
    if viewer.role is Role.USER and viewer.name != user:
        raise Forbidden(
            f"the quota of {user!r} is another user's: only this user, viewers and administrators see it"
        )
    with context.readers.begin() as session:
        view = _view(session, context, user)
    stored = quotas.storage_used_gib(context.readers, user, context.files.checkpoints(user))
    return view.model_copy(update={"used": view.used.model_copy(update={"storage_gib": stored})})


@router.put("/{user}")
def set_quota(user: _UserName, limits: QuotaLimits, context: InContext, admin: Admin) -> QuotaView:
    """Give a user limits in place of all that were set for this user. Limits that are left out are as the settings
    say. A lower limit ends no trainer: those above it wait, or end by themselves."""
    given = limits.model_dump()
    with context.sessions.begin() as session:
        quotas.set_quota(session, user, given, admin.name)
        set_limits = {name: value for name, value in given.items() if value is not None}
        audit.record(session, admin.actor, "quota.set", user, user, **set_limits)
        session.flush()
        view = _view(session, context, user)
    context.news_for_controller.notify()
    return view


@router.delete("/{user}", status_code=HTTPStatus.NO_CONTENT)
def clear_quota(user: _UserName, context: InContext, admin: Admin) -> Response:
    """Take back all limits that were set for a user, so that the settings' apply; no error if there are none."""
    with context.sessions.begin() as session:
        row = session.get(QuotaRecord, user)
        if row is not None:
            session.delete(row)
            audit.record(session, admin.actor, "quota.cleared", user, user)
    context.news_for_controller.notify()
    return Response(status_code=HTTPStatus.NO_CONTENT)


def check_quota(session: Session, context: Context, spec: TrainerSpec, user: Principal, *, is_new: bool) -> None:
    """Raise `Forbidden` where the user's quota does not allow the spec's weight or curve and, with `is_new`,
    `Conflict` where it does not allow another trainer; `check_storage` looks at its checkpoints. Administrators
    may do both."""
    if user.role is Role.ADMIN:
        return
    quota = quotas.quota_of(session, current(session, context.settings), user.name)
    check_weight(spec.weight, quota)
    _check_curves(spec, context.settings.quota.curve_gain)
    if not is_new:
        return
    if quota.trainers is not None and quotas.live_trainers(session, user.name) >= quota.trainers:
        raise Conflict(
            f"{user.name} has {quota.trainers} live trainers, the most that the quota allows: cancel one, or ask "
            "an administrator (`oakum quota set`)"
        )


def check_storage(context: Context, user: Principal) -> None:
    """Raise `Conflict` where the checkpoints of the user's trainers take all that the user's quota allows. Not for
    use within a transaction. Administrators have no such limit."""
    if user.role is Role.ADMIN:
        return
    with context.readers.begin() as session:
        most_gib = quotas.quota_of(session, current(session, context.settings), user.name).storage_gib
    if most_gib is None:
        return
    stored = quotas.storage_used_gib(context.readers, user.name, context.files.checkpoints(user.name))
    if stored >= most_gib:
        raise Conflict(
            f"{user.name}'s checkpoints take {stored:.3g} GiB, and the quota allows {most_gib:g}: "
            "ask an administrator to remove those of ended trainers, or for more (`oakum quota set`)"
        )


def check_weight(weight: float, quota: quotas.Quota) -> None:
    """Raise `Forbidden` for a weight above the quota's."""
    if weight > quota.weight:
        raise Forbidden(
            f"weight {weight:g} is above {quota.weight:g}, the largest that your quota allows, since weights buy "
            "nodes: give less, or ask an administrator (`oakum quota set`)"
        )


def _check_curves(spec: TrainerSpec, most_gain: float) -> None:
    """Raise `Forbidden` for a curve that claims more than `most_gain` times the speed per node that the fewest
    nodes have."""
    for points in (spec.curve, *spec.curves_by_type.values()):
        if not points:
            continue
        (least, rate), *more = points
        for nodes, claimed in more:
            if claimed / nodes > most_gain * rate / least:
                raise Forbidden(
                    f"curve: {claimed:g} samples/s at {nodes} nodes is {claimed / nodes:.3g} per node, and "
                    f"{rate / least:.3g} at {least}: speed that grows faster than the nodes buys nodes, so only "
                    "administrators may claim it; leave the curve out, and Oakum measures it"
                )


def _users(session: Session) -> list[str]:
    live = session.scalars(select(Trainer.user_name).where(Trainer.state.in_(LIVE_STATES)).distinct())
    own = session.scalars(select(QuotaRecord.user_name))
    return sorted({user for user in (*live, *own) if user is not None})


def _view(session: Session, context: Context, user: str) -> QuotaView:
    quota = quotas.quota_of(session, current(session, context.settings), user)
    count = select(func.sum(Fragment.num_slots)).where(quotas.is_of_trainer_of(user), Fragment.is_live)
    return QuotaView(
        user=user,
        own=session.get(QuotaRecord, user) is not None,
        limits=QuotaLimits(**dataclasses.asdict(quota)),
        used=QuotaUse(
            trainers=quotas.live_trainers(session, user),
            nodes=session.scalar(count) or 0,
            node_hours=context.node_hours.used(session, user, time.time()),
            storage_gib=None,
        ),
    )
