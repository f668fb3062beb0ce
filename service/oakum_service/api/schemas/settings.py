"""Documents of the settings that may be changed while the service runs, and of objectives."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue


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


class SettingList(BaseModel):
    """All settings that may be changed while the service runs."""

    settings: list[SettingView]


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
