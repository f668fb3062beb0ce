"""Documents of foreground jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class ForegroundStartView(BaseModel):
    """A foreground job that has started."""

    job: str
    started_at: float
    num_nodes: int
    delay_s: float
    """Seconds that it waited for fragments to leave its nodes."""


class DelayPeriod(BaseModel):
    """The foreground jobs that started in one period, and how long they waited."""

    from_at: float
    to_at: float
    starts: int
    p50_s: float | None
    p99_s: float | None
    max_s: float


class ForegroundStarts(BaseModel):
    """Foreground jobs that have started."""

    starts: list[ForegroundStartView]
    next: str | None
    """`before` of the page of earlier ones; null if there are none."""
    trend: list[DelayPeriod]
    """By period, over the whole time that was asked for."""


class ForegroundJobRequest(BaseModel):
    """A foreground job for the embedded cluster."""

    model_config = ConfigDict(extra="forbid")

    nodes: Annotated[int, Field(ge=1)]
    run_s: Annotated[float, Field(gt=0, le=3600)]


class ForegroundJobView(BaseModel):
    """The foreground job that was submitted."""

    job: str
