"""Documents of the cluster: its nodes and its sums."""

from __future__ import annotations

from pydantic import BaseModel

from oakum_service.api.schemas.hold import HoldView
from oakum_service.api.schemas.intervals import IdleTimeView
from oakum_service.states import NodeState


class NodeView(BaseModel):
    """One node: what it is used for and which trainer's fragment is on it."""

    name: str
    state: NodeState
    since: float
    node_type: str = ""
    foreground_job: str | None = None
    trainer: str | None = None
    """Name of the trainer whose fragment is on the node."""
    fragment_phase: str | None = None
    hole_ends_at: float | None = None
    """Forecast end of the hole, if there is one."""
    avoided_until: float | None = None
    """Until when nothing new is launched there, because fragments came to nothing; null if that is not so."""
    avoided_because: str = ""
    """The last words of the newest of these fragments."""


class NodeList(BaseModel):
    """Every node at the last recorded change."""

    snapshot: int
    taken_at: float
    """When nodes or their jobs last changed."""
    nodes: list[NodeView]
    version: str = ""
    """What a later request gives as `since`."""
    is_difference: bool = False
    """Whether only what has changed since `since` is here."""
    gone: list[str] = []
    """Of a difference: nodes that the cluster no longer has."""


class SilenceView(BaseModel):
    """A scheduler that does not answer: meanwhile trainers go on and nothing is launched."""

    since: float
    """When it was asked the first question that it has not answered."""
    for_s: float
    """Seconds since then."""
    tried: str
    """What it was asked last and what came of that."""


class ClusterView(BaseModel):
    """The cluster at a glance. Sums and delays are over the last seven days."""

    scheduler: str
    num_nodes: int
    num_foreground: int
    num_holes: int
    num_training: int
    """Number of holes in which a fragment is a member of a generation."""
    idle_node_s: float
    """Node-seconds in holes."""
    used_node_s: float
    """Node-seconds in holes during which a fragment trained."""
    idle_time: IdleTimeView | None = None
    """Where the idle node-time went, by cause; null where the service is too old to tell."""
    harvested_node_s: float = 0.0
    """Node-seconds that fragments have trained since the service was set up, however long ago."""
    foreground_jobs_started: int
    foreground_delay_p50_s: float | None
    foreground_delay_p99_s: float | None
    foreground_delay_max_s: float | None
    foreground_delay_last_s: float | None = None
    """Delay of the last foreground start; all delays are the seconds that a job waited for our fragments to
    leave."""
    limit_delay_p99_s: float | None = None
    """An administrator's limit of `foreground_delay_p99_s`; null without one."""
    exceeds_delay_p99: bool = False
    """Whether that limit is exceeded."""
    lost_share: float | None = None
    """Share of the node-time lent this month (UTC) that brought nothing: warm-up, stalls, repeated steps; null
    where none was lent."""
    limit_lost_share: float | None = None
    """An administrator's limit of `lost_share`; null without one."""
    exceeds_lost_share: bool = False
    """Whether that limit is exceeded."""
    num_fragments: int = 0
    """Number of live fragments, warming up or not."""
    held: bool = False
    """Whether there is a hold: every fragment has to leave and none is launched."""
    hold: HoldView | None = None
    """The hold, if there is one."""
    fault: str | None = None
    """Why the service cannot write to its database, which makes this document outdated, and what to do; null if
    it can."""
    dry_run: bool = False
    """Whether plans are made and shown without being carried out."""
    snapshot_age_s: float | None = None
    """Seconds since the scheduler's state was read; null before the first reading."""
    silence: SilenceView | None = None
    """Since when the scheduler has not answered; null while it answers."""
