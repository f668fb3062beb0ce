"""Documents of the hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class HoldView(BaseModel):
    """Whether there is a hold, since when, and by whom."""

    held: bool
    reason: str = ""
    by: str | None = None
    since: float | None = None
    sentence: str = ""
    """One sentence with all of this and how the hold ends; empty if there is none."""


class HoldRequest(BaseModel):
    """The reason for a hold."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=500)] = ""
