"""Documents of the settings that may be changed while the service runs, and of objectives."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from oakum_solver.exploration import Exploration


class SettingView(BaseModel):
    """A setting that may be changed while the service runs."""

    name: str
    value: JsonValue
    """What holds now; an objective is its text."""
    at_start: JsonValue
    """What the service was started with; holds again after a reset."""
    by: str | None
    """Who has changed it; null if nobody has."""
    at: float | None
    """When."""


class PlanningView(BaseModel):
    """How plans are made now, apart from trainers and nodes, and what a rescale costs."""

    objective: str
    look_ahead_s: float | None
    """Seconds over which a plan counts its gains; null: it follows from how long nodes stay idle."""
    groups: bool
    starvation_guard_s: float | None
    """Seconds without nodes after which a trainer is guaranteed its minimum; null: never."""
    starvation_quantum_s: float
    user_cap: int | None
    milp_solver: Literal["cbc", "highs"]
    solver_limit_s: float
    stall_s: float
    """Seconds for which a rescale stops a trainer: the median of the newest trainers, or as the settings assume it
    while none has been measured."""
    start_up_s: float
    """Seconds from a fragment's launch until it trains, likewise."""
    explore_share: float = Exploration.share
    """Largest share of a trainer's node-time for trying sizes whose speed is not known."""


class SettingList(BaseModel):
    """All settings that may be changed while the service runs."""

    settings: list[SettingView]
    planning: PlanningView | None = None
    """With what else decides plans; `oakum replay --as` plans so. Null from a service before 0.3."""


class SettingChange(BaseModel):
    """A setting's new value."""

    model_config = ConfigDict(extra="forbid")

    value: Annotated[str, Field(max_length=4000)] | bool | int | float | None


class ObjectiveView(BaseModel):
    """An objective that is known by name."""

    name: str
    description: str


class ObjectiveList(BaseModel):
    """The objectives known by name, and the one in force, which may be an expression."""

    current: str
    objectives: list[ObjectiveView]
    quantities: dict[str, str]
    """What expressions may use: names, and what each stands for."""
