"""Documents of plans: those that were made, and those that would be made."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from oakum_service.api.schemas.trainers import TrainerChange


class AllocationView(BaseModel):
    """The nodes that a plan grants one trainer, and why not more."""

    trainer: str
    """The trainer's name."""
    nodes: list[str]
    why: str
    reason: str


class PlanView(BaseModel):
    """A plan: the nodes of each trainer, and how good the plan is."""

    id: int
    parent: int | None
    snapshot: int
    made_at: float
    solver: str
    value: float
    bound: float
    gap: float
    optimal: bool
    solve_s: float
    look_ahead_s: float
    objective: str
    allocations: list[AllocationView]


class SupposedChange(TrainerChange):
    """Other bounds, weight or priority of a live trainer."""

    trainer: str
    """Name or id."""
    epochs: None = None
    """Has no part in plans."""
    slurm: None = None
    """Not foreseen."""

    @property
    def given(self) -> dict[str, Any]:
        """What would be otherwise, by the names of the spec's fields."""
        return {name: value for name, value in super().given.items() if name != "trainer"}


class WhatIfRequest(BaseModel):
    """What is assumed to be otherwise; nothing, for the plan that would be made now."""

    model_config = ConfigDict(extra="forbid")

    add: Annotated[list[dict[str, Any]], Field(max_length=100)] = []
    """Specs of trainers that would be submitted."""
    remove: Annotated[list[str], Field(max_length=1000)] = []
    """Names or ids of trainers that would end."""
    change: Annotated[list[SupposedChange], Field(max_length=1000)] = []
    drain: Annotated[list[str], Field(max_length=10_000)] = []
    """Nodes that nobody could use."""
    drain_count: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of further nodes that nobody could use: free ones, then others."""
    objective: Annotated[str, Field(max_length=2000)] | None = None


class SupposedAllocation(BaseModel):
    """What a plan that was not recorded gives a trainer."""

    trainer: str
    is_new: bool
    """Whether the trainer is one of the request's `add`."""
    nodes_now: int
    nodes_then: int
    gained: list[str]
    """Nodes that the trainer does not hold now."""
    lost: list[str]
    """Nodes that it holds now and would not keep."""
    why: str
    reason: str


class WhatIfView(BaseModel):
    """The plan that would be made; it has no effect."""

    objective: str
    num_idle: int
    """Nodes that a plan could give, drained ones left out."""
    value: float
    bound: float
    optimal: bool
    solver: str
    solve_s: float
    held: bool
    """Whether there is a hold, in which case no plan has an effect before it ends."""
    allocations: list[SupposedAllocation]


class PlanList(BaseModel):
    """Plans, the newest first."""

    plans: list[PlanView]
