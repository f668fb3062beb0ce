"""Documents of nodes over time. Columns of equal length stand for rows: that is a tenth of the size of objects."""

from __future__ import annotations

from pydantic import BaseModel


class StretchColumns(BaseModel):
    """What nodes did: one entry of each column for one stretch."""

    node: list[int]
    """Index in `nodes`."""
    start_s: list[float]
    """Seconds after `from_at`; negative for a stretch that began before."""
    end_s: list[float | None]
    """Seconds after `from_at`; null: it lasts."""
    state: list[str]
    """Of merged stretches, the state that took most of the time."""
    job: list[str]
    """The foreground job; empty for holes and merged stretches."""
    name: list[str]
    """The foreground job's name."""
    count: list[int]
    """How many stretches are merged into it."""


class FragmentColumns(BaseModel):
    """Fragments on nodes: one entry of each column for one fragment."""

    node: list[int]
    start_s: list[float]
    training_s: list[float | None]
    """When it first joined a generation; before that it warmed up."""
    end_s: list[float | None]
    trainer: list[int]
    """Index in `trainers`."""
    cause: list[str]
    """Why it ended; empty while it is there."""
    count: list[int]
    """How many fragments of the trainer are merged into it."""


class TimelineRows(BaseModel):
    """Some nodes over time."""

    from_at: float
    to_at: float
    """When the window ends, at most the time of the answer."""
    kept_from: float
    """Since when stretches are told: earlier ones are deleted, or are too many for one answer; ask for fewer nodes
    or a shorter window."""
    is_difference: bool
    """Whether only what changed since `changed_after` is here."""
    nodes: list[str]
    trainers: list[str]
    stretches: StretchColumns
    fragments: FragmentColumns


class OccupancyBand(BaseModel):
    """Shares of some neighbouring nodes' time by use. Each text has a digit for each column, from 0 to z (base
    36): z is all of the time."""

    first: str
    """The first node."""
    num_nodes: int
    foreground: str
    training: str
    idle: str
    """In holes without a fragment that trains. What is missing to the whole was unavailable or is not known."""


class Occupancy(BaseModel):
    """Shares of node-time by use, for bands of nodes and columns of time."""

    from_at: float
    to_at: float
    """The window's borders are multiples of a column where it is longer than three hours."""
    kept_from: float
    """Since when bands are known; before that one band of all nodes is made from sums of whole hours."""
    columns: int
    bands: list[OccupancyBand]
