"""Sends what a command changes about a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from oakum_client.cli.connection import connect

if TYPE_CHECKING:
    from oakum_service.api.schemas.trainers import TrainerView


def change_trainer(trainer: str, given: Mapping[str, Any], options: str) -> TrainerView:
    """Change what is given and not None, by the fields of `TrainerChange`. Returns the trainer's document after
    that. Raises `BadParameter` where nothing is given, which names the `options`, or a value cannot be."""
    from pydantic import ValidationError

    from oakum_service.api.schemas.trainers import TrainerChange
    from oakum_worker.spec import explain

    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise typer.BadParameter(f"nothing to change: give {options}")
    try:
        change = TrainerChange.model_validate(changes)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(explain(error))) from error
    with connect() as client:
        return client.change(trainer, change)
