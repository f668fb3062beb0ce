"""Documents of nodes over time, with an object for each interval."""

from __future__ import annotations

from pydantic import BaseModel


class Interval(BaseModel):
    """A time interval on one node; `end_at` is null if it has not ended."""

    node: str
    start_at: float
    end_at: float | None


class ForegroundInterval(Interval):
    """A foreground job on one node."""

    job: str
    name: str


class FragmentInterval(Interval):
    """The time of a fragment on its node."""

    fragment: str
    trainer: str
    """Trainer's name."""
    training_at: float | None
    """When the fragment first joined a generation; before that it warmed up."""
    phase: str


class IdleTimeView(BaseModel):
    """Where the idle node-time of some time went, in node-seconds. The parts add up to `idle_node_s`."""

    since: float
    """When the time began, in Unix seconds: as asked for, or when the service began to count this."""
    idle_node_s: float
    trained_node_s: float
    """In which fragments trained, without stalls."""
    stalled_node_s: float
    """In which fragments trained that stalled, and for steps that had to be repeated."""
    start_up_node_s: float
    """From fragments' launches to their first generations."""
    late_node_s: float
    """In which nodes were free on which a fragment was launched within two minutes."""
    unwanted_node_s: float
    """All other: no plan gave the node to a trainer."""


class HoleList(BaseModel):
    """Holes, in order of their start."""

    holes: list[Interval]
    next: str | None = None
    """`before` of the page of earlier holes; null if there are none."""
    idle_time: IdleTimeView | None = None
    """What became of the node-time of all holes in that time; null on pages of earlier holes."""


class Timeline(BaseModel):
    """Nodes over time, as the dashboard draws them."""

    from_at: float
    to_at: float
    is_shortened: bool = False
    """Whether `from_at` is later than what was asked for, because there are too many stretches before it."""
    nodes: list[str]
    foreground: list[ForegroundInterval]
    holes: list[Interval]
    fragments: list[FragmentInterval]
