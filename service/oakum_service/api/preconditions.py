"""ETag and If-Match: a change is refused if what it changes is no longer what the caller has seen."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from fastapi import Header

from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import PreconditionFailed
from oakum_service.states import TrainerState

ETAG = "ETag"
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=1000,
        description="`ETag` of what is to be changed, as the caller knows it: if it has changed since, of a "
        "trainer its spec, its pause or its end, nothing is done and the status is 412. `*` stands for any.",
    ),
]


def etag_of(trainer: Trainer) -> str:
    """The ETag of all that requests change about a trainer: its spec, its pause, and whether it has ended or will.
    Training leaves it as it is."""
    state = TrainerState(trainer.state)
    facts = [
        trainer.id,
        trainer.spec.model_dump_json(),
        None if trainer.pause is None else [trainer.pause.by, trainer.pause.since, trainer.pause.reason],
        trainer.cancel_requested,
        state if state.ended else None,
    ]
    return f'"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]}"'


def check_if_match(given: str | None, trainer: Trainer) -> None:
    """Raise `PreconditionFailed` if `given`, the header's value, names ETags and none is the trainer's."""
    require_match(given, etag_of(trainer), f"trainer {trainer.name!r}")


def require_match(given: str | None, etag: str, what: str) -> None:
    """Raise `PreconditionFailed` if `given`, the header's value, names ETags and none is `etag`, that of `what`.
    Weak ones (`W/"..."`) match nothing (RFC 9110, section 13.1.1)."""
    if given is None or given.strip() == "*":
        return
    if etag not in [each.strip() for each in given.split(",")]:
        raise PreconditionFailed(
            f"{what} has changed since: its ETag is {etag}, If-Match has {given}: "
            "read it again, and send the change with the new ETag if it is still wanted"
        )
