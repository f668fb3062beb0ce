"""Documents of trainers before they are submitted: a spec's text, and what a dry run finds."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class DryRunRequest(BaseModel):
    """A trainer that might be submitted."""

    model_config = ConfigDict(extra="forbid")

    spec: dict[str, Any]
    total_samples: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    """Samples of all epochs, if someone has counted the data set."""


class ChangedTrainer(BaseModel):
    """Another trainer whose size the plan would change."""

    name: str
    nodes_now: int
    nodes_then: int


class SpecText(BaseModel):
    """A spec as it is written into a file."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=200_000)]


class SpecDocument(BaseModel):
    """The fields of a spec's text."""

    spec: dict[str, JsonValue]
    lines: dict[str, int]
    """The place of each field, such as `checkpoint.every_s`, with the line of the text, from 1, on which it
    stands."""


class DryRunView(BaseModel):
    """The next plan if the trainer were submitted now."""

    name: str
    num_idle: int
    """Number of nodes that a plan may grant at this moment, whoever trains on them now."""
    nodes: list[str]
    """Nodes that it would get."""
    why: str
    reason: str
    """Why it would have that size."""
    start_in_s: float | None
    """Seconds until it trains, by the usual start-up time; null without nodes."""
    samples_per_s: float | None
    """Rate at that size by its curve; null if it has no curve for these nodes."""
    finish_in_s: float | None
    """Seconds until its end if the holes stay; null if the rate or the number of samples is unknown."""
    hole_ends_in_s: float | None = None
    """Seconds until a foreground job is expected on the first of these nodes; null if none is announced."""
    changed: list[ChangedTrainer] = []
    """Other trainers that would change in size."""
    slots_reason: str = ""
    """How many slots each of its fragments would take and why, if its spec leaves that to the service and nodes
    are given in parts."""
    held: bool = False
    """Whether there is a hold, in which case nothing starts before it ends."""
