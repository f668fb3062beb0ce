"""The documents of the REST API. Times are Unix seconds (`*_at`), durations seconds (`*_s`)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from oakum_service.states import NodeState, TimeUse, TrainerState
from oakum_worker.spec import TrainerSpec


class MeasuredRateView(BaseModel):
    """How fast a trainer trains at one number of nodes, rescales left out."""

    nodes: int
    samples_per_s: float
    seconds: float
    """Over which it was measured."""


class WarmingFragment(BaseModel):
    """A fragment on its way to its first generation."""

    node: str
    launched_at: float


class DurationView(BaseModel):
    """How long something takes, as measured."""

    median_s: float
    """Of the newest few: what plans count with."""
    last_s: float
    count: int
    """How many these few are."""


class TimeSpent(BaseModel):
    """Where a trainer's time went, by the clock. All but the last two fields with seconds add up to the time from
    `since_at` until now, or until the trainer's end."""

    since_at: float
    """Its first start, or when an older service was replaced by one that keeps accounts."""
    training_s: float
    grow_s: float
    """Stalls: nodes joined."""
    shrink_s: float
    """Stalls: nodes left in order."""
    loss_s: float
    """Stalls: a node or a rank was lost."""
    cold_start_s: float
    """From being granted nodes, while no replica was left, to the first step on them."""
    waiting_s: float
    """Without nodes."""
    redone_s: float
    """Of `training_s`, what went into steps that had to be repeated."""
    redone_steps: int
    warm_up_node_s: float
    """Node-seconds from fragments' launches to their first generations; others train meanwhile."""


class TrainerView(BaseModel):
    """A trainer: what was submitted, where it is, and why it has the size it has."""

    id: str
    name: str
    state: TrainerState
    message: str = ""
    """Why it ended; before that what is wrong with it, until its next durable checkpoint."""
    spec: TrainerSpec
    user: str | None = None
    """Name of the token that submitted it."""
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    generation: int = 0
    nodes: list[str] = []
    """Members of the current generation, rank 0's node first."""
    granted: list[str] = []
    """What the current plan gives it; members follow when their agents are ready."""
    warming: list[WarmingFragment] = []
    """Fragments that have not joined yet, the oldest first."""
    step: int = 0
    total_steps: int | None = None
    epoch: int = 0
    samples: int = 0
    total_samples: int | None = None
    """Of all epochs."""
    global_batch: int | None = None
    """Samples of the last step; before the first one, the spec's."""
    learning_rate: float | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    checkpoint_step: int | None = None
    """Finished steps in the newest durable checkpoint."""
    checkpoint_at: float | None = None
    """When that was first heard of; null where it was found on the disk."""
    metrics: dict[str, float] = {}
    steps_at_size: dict[int, int] = {}
    """Node count -> optimizer steps finished at it."""
    measured_rates: list[MeasuredRateView] = []
    """Its scalability as measured, the smallest size first."""
    nodes_lost: int = 0
    """Nodes taken back by foreground jobs or lost otherwise."""
    nodes_gained: int = 0
    """Nodes that joined after the trainer first started."""
    rescales: int = 0
    stall_s: float = 0.0
    """Seconds without progress in rescales, in all."""
    last_stall_s: float | None = None
    stalls: dict[TimeUse, DurationView] = {}
    """By cause: `grow`, `shrink` and `loss`, as far as they were measured."""
    start_up: DurationView | None = None
    """From the start of a fragment's agent to its ranks' readiness."""
    time_spent: TimeSpent | None = None
    """Null before its first start."""
    reason: str = ""
    """Why the plan gives it this size."""


class TrainerList(BaseModel):
    """Trainers, the newest last."""

    trainers: list[TrainerView]


class TrainerChange(BaseModel):
    """Fields of a live trainer that may be changed (`oakum scale`)."""

    model_config = ConfigDict(extra="forbid")

    min_nodes: Annotated[int, Field(ge=1)] | None = None
    max_nodes: Annotated[int, Field(ge=1)] | None = None
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None


class SeriesPoint(BaseModel):
    """One sample of a trainer's progress."""

    at: float
    step: int
    nodes: int
    loss: float | None
    samples_per_s: float | None


class Series(BaseModel):
    """A trainer's progress over time, in order."""

    points: list[SeriesPoint]


class LogText(BaseModel):
    """The last lines of a trainer's newest fragments, each line prefixed with its node."""

    lines: list[str]


class NodeView(BaseModel):
    """One node: what it does and who trains on it."""

    name: str
    state: NodeState
    since: float
    foreground_job: str | None = None
    trainer: str | None = None
    """Name of the trainer whose fragment is on the node."""
    fragment_phase: str | None = None
    hole_ends_at: float | None = None
    """Forecast end of the hole, where there is one."""


class NodeList(BaseModel):
    """Every node, as of the last change that was seen."""

    snapshot: int
    taken_at: float
    """When the nodes or their jobs last changed."""
    nodes: list[NodeView]


class Interval(BaseModel):
    """Something on one node from start to end (null: still there)."""

    node: str
    start_at: float
    end_at: float | None


class ForegroundInterval(Interval):
    """A foreground job on one node."""

    job: str
    name: str


class FragmentInterval(Interval):
    """A fragment's stay on its node."""

    fragment: str
    trainer: str
    """Trainer's name."""
    training_at: float | None
    """When it first joined a generation; before that it warmed up."""
    phase: str


class HoleList(BaseModel):
    """Holes, in order of their start."""

    holes: list[Interval]


class Timeline(BaseModel):
    """Nodes x time: what the dashboard draws."""

    from_at: float
    to_at: float
    nodes: list[str]
    foreground: list[ForegroundInterval]
    holes: list[Interval]
    fragments: list[FragmentInterval]


class AllocationView(BaseModel):
    """One trainer's grant, and why it is that."""

    trainer: str
    """Trainer's name."""
    nodes: list[str]
    why: str
    reason: str


class PlanView(BaseModel):
    """A plan: who gets which nodes, and how good that is."""

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


class PlanList(BaseModel):
    """Plans, the newest first."""

    plans: list[PlanView]


class Explanation(BaseModel):
    """Why a trainer has the nodes it has."""

    trainer: str
    nodes: int
    granted: int
    why: str
    reason: str
    plan: int | None


class Event(BaseModel):
    """Something that happened; also the SSE stream's data."""

    id: int
    at: float
    kind: str
    """`trainer.submitted`, `trainer.running`, `trainer.waiting`, `trainer.finished`, `trainer.failed`,
    `trainer.cancelled`, `trainer.changed`, `trainer.warning`, `trainer.guaranteed`, `generation.formed`,
    `node.hole`, `node.foreground`, `node.unavailable`, `plan.made`, `plan.failed`,
    `fragment.launched`, `fragment.ready`, `fragment.left`, `fragment.lost`, `checkpoint.written`,
    `service.started`, `service.stopping`."""
    subject: str
    """Name of the trainer or node."""
    message: str
    data: dict[str, Any] = {}


class EventList(BaseModel):
    """Events, in order of time."""

    events: list[Event]


class ClusterView(BaseModel):
    """The cluster at a glance. Sums and delays are of the last seven days."""

    scheduler: str
    num_nodes: int
    num_foreground: int
    num_holes: int
    num_training: int
    """Holes in which a fragment is a member of a generation."""
    idle_node_s: float
    """Idle node-seconds seen."""
    used_node_s: float
    """Of these, seconds in which a fragment trained."""
    foreground_jobs_started: int
    foreground_delay_p50_s: float | None
    foreground_delay_p99_s: float | None
    foreground_delay_max_s: float | None
    foreground_delay_last_s: float | None = None
    """Delays of foreground jobs' starts by the exit of our fragments."""
    num_fragments: int = 0
    """Fragments that have not ended, warming up or not."""
    held: bool = False
    """An admin's hold: every fragment is sent away and none is launched."""
    dry_run: bool = False
    """Plans are made and shown, and not carried out."""
    snapshot_age_s: float | None = None
    """Since the scheduler's state was read; None before the first time."""


class HoldRequest(BaseModel):
    """Why nothing is to run."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=500)] = ""


class HoldView(BaseModel):
    """Whether nothing is to run, since when, and by whose word."""

    held: bool
    reason: str = ""
    by: str | None = None
    since: float | None = None


class ForegroundJobRequest(BaseModel):
    """A foreground job for the embedded cluster."""

    model_config = ConfigDict(extra="forbid")

    nodes: Annotated[int, Field(ge=1)]
    run_s: Annotated[float, Field(gt=0, le=3600)]


class ForegroundJobView(BaseModel):
    """The foreground job that was handed in."""

    job: str


class Problem(BaseModel):
    """RFC 9457 problem details; media type application/problem+json."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[str] = []
    """One line for each thing to change, where there are several."""
