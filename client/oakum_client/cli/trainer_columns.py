"""The columns of `oakum ps`."""

from __future__ import annotations

import time

from rich.text import Text

from oakum_client.cli.columns import Column, Listing
from oakum_client.cli.output import STATE_STYLES
from oakum_client.cli.screen import left_s_of, rate_of, share_of, size_of, status_age_of, time_left_of, why_of
from oakum_client.cli.units import age, count, decimal
from oakum_service.api.schemas.trainers import TrainerView


def _share_done(view: TrainerView) -> str:
    share = share_of(view)
    return "-" if share is None else f"{share:.0%}"


def _age_s(at: float | None) -> float | None:
    return None if at is None else time.time() - at


TRAINER_LISTING = Listing[TrainerView](
    {
        "name": Column("NAME", lambda view: Text(view.name), key=lambda view: view.name),
        "state": Column("STATE", lambda view: Text(view.status, style=STATE_STYLES.get(view.status, ""))),
        "nodes": Column(
            "NODES", lambda view: str(len(view.nodes)), key=lambda view: len(view.nodes), is_number=True
        ),
        "of": Column("OF", size_of, key=lambda view: view.spec.max_nodes, is_number=True),
        "done": Column("DONE", _share_done, key=share_of, is_number=True),
        "rate": Column("SAMPLES/S", rate_of, key=lambda view: view.samples_per_s, is_number=True),
        "left": Column("LEFT", time_left_of, key=left_s_of, is_number=True),
        "age": Column(
            "AGE", lambda view: age(view.submitted_at), key=lambda view: _age_s(view.submitted_at), is_number=True
        ),
        "for": Column("FOR", status_age_of, key=lambda view: _age_s(view.status_since), is_number=True),
        "step": Column("STEP", lambda view: count(view.step), key=lambda view: view.step, is_number=True),
        "loss": Column("LOSS", lambda view: decimal(view.loss), key=lambda view: view.loss, is_number=True),
        "user": Column("USER", lambda view: Text(view.user or "-")),
        "priority": Column(
            "PRIORITY", lambda view: str(view.spec.priority), key=lambda view: view.spec.priority, is_number=True
        ),
        "id": Column("ID", lambda view: view.id),
        "tags": Column("TAGS", lambda view: Text(", ".join(view.spec.tags) or "-")),
        "why": Column("WHY", lambda view: Text(why_of(view))),
    },
    usual=("name", "state", "nodes", "of", "done", "rate", "left", "age"),
)
