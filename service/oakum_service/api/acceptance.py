"""What a user may submit to this service: the spec, its name, its priority and what it begins from."""

from __future__ import annotations

import re
from collections.abc import Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.api.auth import Principal, Role
from oakum_service.api.context import Context
from oakum_service.api.ownership import check_may_change, may_read
from oakum_service.api.problems import problem_response
from oakum_service.api.quotas import check_quota, check_storage
from oakum_service.api.views import find_trainer
from oakum_service.control.hosts import sizes_of
from oakum_service.control.new_trainers import GivenState, give_state, refuse_state_of, step_to_begin_from
from oakum_service.control.observe import newest_observation
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.documents.slots import is_part
from oakum_service.errors import Conflict, Forbidden, NoticeRefused, RequestError
from oakum_service.states import TrainerState
from oakum_solver.bundles import sums_of
from oakum_worker.spec import TrainerSpec, explain
from oakum_worker.spec_options import SlurmSpec

_MOST_CHARACTERS = 200_000
"""Of a spec as JSON: as many as a spec's text may have, which lists of trainers repeat."""
_MOST_POINTS, _MOST_TYPES = 1000, 100
"""Of curves, which every turn reads."""
_WHOLE_TYPE = re.compile(r":[0-9]+(?=$|\+)")
"""In the type of a whole node (`a100:4+ib`), what that of its slots has not."""
_ENDED = [state for state in TrainerState if state.ended]


def acceptable(document: dict[str, Any], user: Principal, context: Context) -> TrainerSpec:
    """The spec in the document. Raises pydantic's `ValidationError` if the document is not a spec, and
    `RequestError` if it is too large, or this service refuses the spec."""
    spec = TrainerSpec.model_validate(document)
    check_size(spec)
    check_trust(user, user.name, context)
    check_priority(spec.priority, user)
    _check_recipients(spec, context)
    check_slurm(spec, context)
    _check_slots(spec, context)
    return spec


def check_size(spec: TrainerSpec) -> None:
    """Raise `RequestError` for a spec so large that lists of trainers, and turns, would take long with it."""
    for points in (spec.curve, *spec.curves_by_type.values()):
        if len(points) > _MOST_POINTS:
            raise RequestError(f"a curve has {len(points):,} points: give at most {_MOST_POINTS:,}")
    if len(spec.curves_by_type) > _MOST_TYPES:
        raise RequestError(f"curves_by_type has {len(spec.curves_by_type):,} types: give at most {_MOST_TYPES}")
    if (size := len(spec.model_dump_json())) > _MOST_CHARACTERS:
        raise RequestError(
            f"the spec has {size:,} characters as JSON, and may have {_MOST_CHARACTERS:,}: pass the name of a "
            "file in place of its content"
        )


def unacceptable(error: ValidationError) -> JSONResponse:
    """The answer to a document that is not a spec."""
    lines = explain(error)
    return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, f"the spec cannot be accepted: {lines[0]}", lines)


def _check_recipients(spec: TrainerSpec, context: Context) -> None:
    """Raise `Conflict` for recipients to whom no notice could ever be sent."""
    settings = context.settings.notices
    for each in spec.notify:
        if each.email is not None and settings.mail_from is None:
            raise Conflict(
                "notify: this service sends no e-mail: leave email out, or ask an administrator to set "
                "OAKUM_NOTICES_MAIL_FROM"
            )
        if each.webhook is not None:
            try:
                settings.allowed.check(urlsplit(each.webhook))
            except NoticeRefused as error:
                raise Conflict(f"notify: {error}") from error


def check_slurm(spec: TrainerSpec, context: Context) -> None:
    """Raise `Forbidden` if the trainer's jobs would ask Slurm for what no administrator has allowed."""
    if spec.slurm == SlurmSpec():
        return
    if not context.settings.scheduler_kind.takes_slurm_options:
        raise Forbidden("slurm: this service does not submit to Slurm: leave it out")
    if (why := context.settings.slurm.refusal(spec.slurm)) is not None:
        raise Forbidden(why)


def _check_slots(spec: TrainerSpec, context: Context) -> None:
    """Raise `Conflict` if the spec does not fit the slots in which nodes are given, where nodes are known."""
    has_curve = bool(spec.curve or spec.curves_by_type)
    if not has_curve and spec.slots_per_fragment in (1, "auto"):
        return
    with context.readers.begin() as session:
        observed = newest_observation(session)
    nodes = () if observed is None else observed.snapshot.nodes
    if nodes and isinstance(spec.slots_per_fragment, int):
        _refuse_large_fragments(spec.slots_per_fragment, max(sizes_of(nodes).values()))
    if nodes and spec.slots_per_fragment == "node":
        _refuse_sizes_of_no_nodes(spec, set(sizes_of(nodes).values()))
    if has_curve:
        _refuse_curves_over_nodes(spec, nodes)


def _refuse_sizes_of_no_nodes(spec: TrainerSpec, slots: Collection[int]) -> None:
    """Raise `Conflict` if no number of slots that the trainer may have is all that some nodes have together, of
    however many nodes with these numbers of slots."""
    # Of one node, two, four and so on: sums of these are those of any number of nodes.
    doubled = [size << times for size in slots for times in range((spec.max_nodes // size).bit_length())]
    numbers = spec.allowed_sizes or range(spec.min_nodes, spec.max_nodes + 1)
    if {*numbers}.isdisjoint(sums_of(doubled, spec.max_nodes)):
        listed = "sizes" if spec.listed_sizes else "min_nodes, max_nodes"
        have = " or ".join(map(str, sorted(slots)))
        raise Conflict(
            f"{listed}: with slots_per_fragment node a fragment has all slots of a node, and nodes have {have} "
            f"here, so that no number that you allow can be given: allow a multiple of {min(slots)}, or give "
            "another slots_per_fragment"
        )


def _refuse_large_fragments(slots: int, most: int) -> None:
    """Raise `Conflict` if a fragment needs more slots of one node than `most`, which a node has."""
    if most < slots:
        are_whole = (
            "nodes are given as a whole here" if most == 1 else f"no node has more than {most} slots of a type"
        )
        raise Conflict(
            f"slots_per_fragment: a fragment would need {slots} slots of one node, and {are_whole}: "
            f"give {f'at most {most}' if most > 1 else '1'}, or node for all that a node has"
        )


def _refuse_curves_over_nodes(spec: TrainerSpec, nodes: Collection[Node]) -> None:
    """Raise `Conflict` for curves that count nodes where nodes are given in slots."""
    types = {node.node_type for node in nodes if is_part(node.name)}
    present = {node.node_type for node in nodes}
    for named in spec.curves_by_type.keys() - present:
        if (slot := _WHOLE_TYPE.sub("", named)) in types:
            raise Conflict(
                f"curves_by_type: no node is of type {named}, since nodes are given in slots of type {slot} here: "
                f"give a curve over such slots as {slot}"
            )
    if types and types == present and spec.ranks_per_node > 1:
        name = "curve" if spec.curve else "curves_by_type"
        raise Conflict(
            f"{name}: its points count nodes of {spec.ranks_per_node} ranks (ranks_per_node), and nodes are given "
            "in slots of one rank here: give points over slots, and leave ranks_per_node out"
        )


def check_trust(user: Principal, owner: str | None, context: Context) -> None:
    """Raise `Forbidden` where code that the user submits may not run in the account that runs it: the service's,
    or that of the trainer's `owner`. Raises `AccountUnavailable` where that cannot be found out."""
    context.files.check(owner)
    if user.role < Role.ADMIN and not context.settings.users_may_submit:
        raise Forbidden(
            "trainers' code runs in the service's own account here, where it can read everybody's checkpoints and "
            "the service's secrets, so only administrators submit trainers: ask one to submit yours, or to set "
            "OAKUM_TRUST_USERS=1 if all users are trusted with that"
        )


def check_priority(priority: int, user: Principal) -> None:
    """Raise `Forbidden` for a priority that the user may not give."""
    if priority > 0 and user.role < Role.ADMIN:
        raise Forbidden(
            f"priority {priority} needs the role admin; {user.bearer} has {user.role.name.lower()}: "
            "give a priority of 0 or below, or ask an administrator"
        )


def beginning(spec: TrainerSpec, user: Principal, context: Context, begin_from: str) -> tuple[Trainer, int | None]:
    """The trainer to begin from, and the step of its checkpoint (None: the newest). Raises `NotFound`, `Forbidden`
    or `Conflict` where the user's trainer cannot begin so. Not for use within a transaction."""
    name, _, at = begin_from.partition("/")
    with context.readers.begin() as session:
        other = find_trainer(session, name)
    refuse_state_of(other, spec, user.name)
    checkpoints = context.files.checkpoints(other.user_name)
    return other, step_to_begin_from(at, lambda: checkpoints.best_step(other.id))


def refuse_taken(session: Session, spec: TrainerSpec, user: Principal) -> None:
    """Raise `Conflict` if a live trainer has the spec's name; the message tells the trainer's state only to those
    who may read it."""
    taken = session.execute(select(Trainer).where(Trainer.name == spec.name, Trainer.state.not_in(_ENDED)))
    if (other := taken.scalars().first()) is not None:
        if not may_read(user, other):
            raise Conflict(f"another user's trainer has the name {spec.name!r}: choose another name")
        raise Conflict(
            f"a trainer named {spec.name!r} is {other.state}: choose another name or `oakum cancel {spec.name}`"
        )


def give_beginning(
    spec: TrainerSpec, user: Principal, context: Context, begin_from: str | None
) -> GivenState | None:
    """Do what a submission has to do with checkpoints, before its transaction: files may take minutes, and others
    wait for the transaction. What it begins from is given to a trainer that would be accepted now."""
    if begin_from is not None:
        with context.readers.begin() as session:
            refuse_taken(session, spec, user)
            check_quota(session, context, spec, user, is_new=True)
    check_storage(context, user)
    if begin_from is None:
        return None
    other, step = beginning(spec, user, context, begin_from)
    return give_state(spec, other, context.files.checkpoints(user.name), step)


def missing_checkpoints(ref: str, user: Principal, context: Context) -> Path | None:
    """Check that a trainer may be retried: that its user's code may run, and that the user may store more
    checkpoints. Returns the folder of its checkpoints if they are gone, else None. To be called before the
    transaction that retries the trainer, since the answer may take long."""
    with context.readers.begin() as session:
        trainer = find_trainer(session, ref)
    check_may_change(user, trainer)
    check_trust(user, trainer.user_name, context)
    if TrainerState(trainer.state).ended:
        check_storage(context, user)
    checkpoints = context.files.checkpoints(trainer.user_name)
    is_gone = trainer.checkpoint_step is not None and not checkpoints.exist(trainer.id)
    return checkpoints.of(trainer.id) if is_gone else None
