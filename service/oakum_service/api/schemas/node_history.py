"""Documents of nodes over time. Columns of equal length stand for rows: that is a tenth of the size of objects."""

from __future__ import annotations

from pydantic import BaseModel

from oakum_service.documents.announcement import AnnouncedKind


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


class AnnouncedColumns(BaseModel):
    """What the scheduler expects to take nodes, a forecast: one entry of each column for one waiting foreground
    job or reservation on one node, the soonest 20 of each node. Which part of a node a job will have is not known:
    it is told of all of them."""

    node: list[int] = []
    """Index in `nodes`."""
    start_s: list[float] = []
    """Seconds after `from_at`; of a reservation that holds the node already, when it began."""
    end_s: list[float | None] = []
    """When the job's time limit or the reservation ends; null: it is not known, or does not end."""
    kind: list[AnnouncedKind] = []
    name: list[str] = []
    """The job's id, or the reservation's name."""
    title: list[str] = []
    """The job's name; `maintenance` for such a reservation; empty where that is not told."""


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
    announced: AnnouncedColumns = AnnouncedColumns()
    """What is not over and begins before the `to_at` that was asked for, if that is after now: all of it, also in
    a difference."""
    announced_from_at: float | None = None
    """When the first of what is announced for any node of the cluster begins, or began; null: nothing is."""
    announced_left_out: int = 0
    """How many jobs and reservations more the scheduler expects, later than the 500 that are kept."""


class FoundNodes(BaseModel):
    """The nodes that a text is found on in a window of time."""

    from_at: float
    to_at: float
    """When the window ends, at most the time of the answer."""
    nodes: list[str]
    """In the scheduler's order."""
    is_complete: bool
    """Whether all that ran in the window was looked through; else what ended last in it was. A shorter window has
    less to look through."""


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
