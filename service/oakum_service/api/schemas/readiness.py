"""Documents of the service's readiness."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class ReadinessCheck(BaseModel):
    """One part of the service. All but `hooks`, which is told on Slurm alone, have to work for it to be ready."""

    name: Literal["database", "schema", "controller", "scheduler", "hooks"]
    ok: bool
    detail: str | None
    """What is wrong with it; null if nothing is."""


class Readiness(BaseModel):
    """Whether the service can do its work, and what keeps it from it."""

    ready: bool
    checks: list[ReadinessCheck]
