"""Documents of plans: those that were made, and those that would be made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from oakum_service.api.schemas.plan_words import found, quality_of, unit_of, worth_of
from oakum_service.api.schemas.trainers import TrainerChange


class AllocationView(BaseModel):
    """The nodes that a plan grants one trainer, and why not more."""

    trainer: str
    """The trainer's name."""
    nodes: list[str]
    why: str
    reason: str


class _Told(BaseModel, ABC):
    """What all documents of a plan tell of it, and the same in words."""

    objective: str
    value: float
    """Sum over all trainers of what their nodes are worth to them, in `unit`."""
    bound: float
    """No plan is worth more, in `unit`."""
    optimal: bool
    solver: str
    solve_s: float
    look_ahead_s: float = 0.0
    """Seconds over which values count; 0 where a service of an older version does not tell."""
    look_ahead_reason: str = ""
    """Why it looks so far ahead, as one sentence; empty where a plan of an older version does not tell."""
    unit: str = ""
    """The unit of `value` and `bound`."""
    quality: str = ""
    """How good the plan is proven to be."""
    summary: str = ""
    """Value, quality and origin as one sentence."""

    @property
    @abstractmethod
    def grants_nothing(self) -> bool:
        """Whether no trainer gets a node."""

    @model_validator(mode="after")
    def _in_words(self) -> Self:
        """Say in words what numbers say, also for a client whose service is older."""
        worth = worth_of(self.objective, self.value, self.look_ahead_s)
        self.unit = unit_of(self.objective)
        self.quality = quality_of(self.objective, self.value, self.bound, optimal=self.optimal)
        if self.grants_nothing and self.value == 0:
            self.summary = "It gives no trainer a node."
        else:
            self.summary = f"Worth {worth}: {self.quality}, {found(self.solver, self.solve_s)}."
        return self


class PlanView(_Told):
    """A plan: the nodes of each trainer, and how good the plan is."""

    id: int
    parent: int | None
    snapshot: int
    made_at: float
    gap: float
    """How far `value` may be below the best, as a share of `bound`."""
    allocations: list[AllocationView]

    @property
    def grants_nothing(self) -> bool:
        return not any(each.nodes for each in self.allocations)


class SupposedChange(TrainerChange):
    """Other bounds, weight or priority of a live trainer."""

    trainer: str
    """Name or id."""
    epochs: None = None
    """Has no part in plans."""
    slurm: None = None
    """Not foreseen."""
    tags: None = None
    add_tags: None = None
    remove_tags: None = None
    notes: None = None
    """Tags and notes have no part in plans."""

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


class WhatIfView(_Told):
    """The plan that would be made; it has no effect."""

    num_idle: int
    """Nodes that a plan could give, drained ones left out."""
    held: bool
    """Whether there is a hold, in which case no plan has an effect before it ends."""
    allocations: list[SupposedAllocation]

    @property
    def grants_nothing(self) -> bool:
        return not any(each.nodes_then for each in self.allocations)


class PlanList(BaseModel):
    """Plans, the newest first."""

    plans: list[PlanView]
