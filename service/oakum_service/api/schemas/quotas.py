"""Documents of quotas."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class QuotaLimits(BaseModel):
    """Limits of one user; null: what the settings say."""

    model_config = ConfigDict(extra="forbid")

    trainers: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Live trainers."""
    nodes: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Nodes of all trainers together."""
    node_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Node-hours in a calendar week, which begins on Monday, 00:00 UTC."""
    storage_gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """GiB of checkpoints."""
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest weight of a trainer."""


class QuotaUse(BaseModel):
    """What a user has now, and has had this week."""

    trainers: int
    nodes: int
    node_hours: float
    """Up to a minute ago."""
    storage_gib: float | None
    """Null in lists, where it would take too long to measure."""


class QuotaView(BaseModel):
    """A user's quota and its use."""

    user: str
    own: bool
    """Whether an administrator has set limits for this user."""
    limits: QuotaLimits
    """The limits that apply; null: there is none."""
    used: QuotaUse


class QuotaList(BaseModel):
    """Quotas, in order of the users' names."""

    quotas: list[QuotaView]
