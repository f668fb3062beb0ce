"""A trainer's beginning, whoever submits it: the API's users, or `oakum serve --submit`."""

from __future__ import annotations

import time
import uuid

from sqlalchemy.orm import Session

from oakum_service.control import journal
from oakum_service.db.models import Trainer
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec


def add_trainer(session: Session, spec: TrainerSpec, user: str) -> Trainer:
    """Add a trainer of a user's that waits for its first node. The caller has seen to it that its name is free."""
    now = time.time()
    trainer = Trainer(
        id=str(uuid.uuid4()),
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        state=TrainerState.WAITING,
        submitted_at=now,
        waiting_since=now,
        user_name=user,
    )
    session.add(trainer)
    journal.record(session, "trainer.submitted", spec.name, f"{spec.entrypoint}, {spec.epochs} epochs")
    return trainer
