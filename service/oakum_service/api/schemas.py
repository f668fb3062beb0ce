"""The documents of the REST API. Times are Unix seconds (`*_at`), durations seconds (`*_s`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from oakum_service.standing import Status
from oakum_service.states import NodeState, TimeUse, TrainerState
from oakum_worker.protocol import BestEvaluation
from oakum_worker.spec import TrainerSpec
from oakum_worker.spec_options import NotifySpec


class MeasuredRateView(BaseModel):
    """How fast a trainer trains at one number of nodes, without rescales."""

    nodes: int
    samples_per_s: float
    seconds: float
    """Seconds of training that were measured."""


class WarmingFragment(BaseModel):
    """A fragment that has not joined a generation yet."""

    node: str
    launched_at: float


class DurationView(BaseModel):
    """Summary of the measured durations of one kind, such as stalls because nodes joined."""

    median_s: float
    """Median of the newest measurements: what plans expect."""
    last_s: float
    count: int
    """Number of these measurements."""


class TimeSpent(BaseModel):
    """What a trainer's time was spent on. All fields in seconds except `redone_s` and `warm_up_node_s` add up
    to the time from `since_at` until now, or until the trainer's end."""

    since_at: float
    """The trainer's first start, or when a service that keeps time accounts replaced an older one."""
    training_s: float
    grow_s: float
    """Stalls because nodes joined."""
    shrink_s: float
    """Stalls because nodes left in order."""
    loss_s: float
    """Stalls because a node or a rank was lost."""
    cold_start_s: float
    """From the grant of nodes, when no replica was left, to the first step on them."""
    waiting_s: float
    """Time without nodes."""
    redone_s: float
    """The part of `training_s` spent on steps that had to be repeated."""
    redone_steps: int
    warm_up_node_s: float
    """Node-seconds from fragments' launches to their first generations, during which other nodes train."""


class AttemptView(BaseModel):
    """The present attempt at a stretch of training, after crashes that training has not got over yet."""

    number: int
    """Number of the present attempt; the first one after a crash is 2."""
    most: int
    """Number of the last attempt: if that one crashes as well, the trainer fails."""
    after: str
    """What ended the attempt before."""


class StepCost(BaseModel):
    """What a step has cost lately on rank 0's node, the step in progress included."""

    step_s: float
    """Seconds of a finished step; if none has finished, the seconds of the one in progress so far."""
    reading_share: float
    """Share of the time spent on reading samples and making batches."""
    waiting_share: float | None
    """Share of the time spent on waiting for other ranks; null if it cannot be told from computing."""


class TrainerView(BaseModel):
    """A trainer: its spec, its progress, and why it has its size."""

    id: str
    name: str
    state: TrainerState
    message: str = ""
    """Why it ended; for a live trainer what is wrong with it, until its next durable checkpoint."""
    attempt: AttemptView | None = None
    """Null if nothing has crashed, if training has got over the crash, and after the trainer's end."""
    traceback: str = ""
    """Traceback of the error that the trainer failed with, if its code raised one."""
    spec: TrainerSpec
    user: str | None = None
    """Name of the token with which it was submitted."""
    is_private: bool = False
    """Whether it is another user's, so that its code, errors, losses and checkpoints are left out of this
    document."""
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    waiting_since: float | None = None
    """When it lost its last node or, before its first, was submitted; null while it has nodes."""
    status_since: float | None = None
    """When `status` began; of a running trainer, when training did. Null where that is not known."""
    generation: int = 0
    nodes: list[str] = []
    """Nodes of the current generation, rank 0's first."""
    granted: list[str] = []
    """Nodes that the current plan grants; each becomes a member when its agent is ready. Empty during a hold."""
    warming: list[WarmingFragment] = []
    """Fragments that have not joined a generation yet, the oldest first."""
    step: int = 0
    total_steps: int | None = None
    epoch: int = 0
    samples: int = 0
    total_samples: int | None = None
    """Samples of all epochs."""
    global_batch: int | None = None
    """Samples of the last step; before the first step, the spec's."""
    learning_rate: float | None = None
    loss: float | None = None
    """The last known loss."""
    stepped_at: float | None = None
    """When a finished step, whose loss is `loss`, was last reported."""
    samples_per_s: float | None = None
    samples_per_s_below: float | None = None
    """Upper bound of the rate while the present step takes much longer than the ones before; null otherwise."""
    pace: StepCost | None = None
    """Null if it does not train, or its agents are too old to report it."""
    checkpoint_step: int | None = None
    """Number of finished steps in the newest durable checkpoint."""
    checkpoint_at: float | None = None
    """When that checkpoint was first reported; null if it was found on the disk."""
    checkpoint_folder: str = ""
    """Folder of its durable checkpoints, on the service's machine and on the nodes."""
    metrics: dict[str, float] = {}
    best: BestEvaluation | None = None
    """The best evaluation by the metric that the spec names, whose checkpoint is kept; null before the first
    one."""
    steps_at_size: dict[int, int] = {}
    """Number of nodes -> optimizer steps finished on that many nodes."""
    measured_rates: list[MeasuredRateView] = []
    """Its measured scalability, the smallest size first."""
    nodes_lost: int = 0
    """Number of nodes that foreground jobs took back or that were lost otherwise."""
    nodes_gained: int = 0
    """Number of nodes that joined after the trainer's first start."""
    rescales: int = 0
    stall_s: float = 0.0
    """Seconds without progress in all rescales together."""
    last_stall_s: float | None = None
    stalls: dict[TimeUse, DurationView] = {}
    """Stalls by cause, `grow`, `shrink` and `loss`, if they were measured."""
    start_up: DurationView | None = None
    """Time from the start of a fragment's agent until its ranks are ready."""
    time_spent: TimeSpent | None = None
    """Null before its first start."""
    status: Status
    """One word for where it stands: its state, or what keeps it from going on, such as a hold."""
    reason: str = ""
    """One sentence that says where it stands and why."""
    condition: str = ""
    """Sentences on what is wrong with a live trainer; empty if nothing is."""
    joining: list[str] = []
    """Nodes that it will train on and does not train on yet."""
    leaving: list[str] = []
    """Nodes that it still trains on and will give back."""

    @model_validator(mode="before")
    @classmethod
    def _as_an_older_service_tells(cls, given: Any) -> Any:
        """Take the state as the status of a document from an older service, which has no statuses."""
        if isinstance(given, dict) and "status" not in given and "state" in given:
            return {**given, "status": given["state"]}
        return given


class HoldView(BaseModel):
    """Whether there is a hold, since when, and by whom."""

    held: bool
    reason: str = ""
    by: str | None = None
    since: float | None = None
    sentence: str = ""
    """One sentence with all of this and how the hold ends; empty if there is none."""


class TrainerList(BaseModel):
    """Trainers, the newest last."""

    trainers: list[TrainerView]
    next: str | None = None
    """`before` of the page of trainers that were submitted earlier and have ended; null if there are none."""
    hold: HoldView | None = None
    """The hold, if there is one."""
    fault: str | None = None
    """Why the service cannot write to its database, which makes this document outdated, and what to do; null if
    it can."""


class TrainerChange(BaseModel):
    """The fields of a live trainer that can be changed (`oakum scale`)."""

    model_config = ConfigDict(extra="forbid")

    min_nodes: Annotated[int, Field(ge=1)] | None = None
    max_nodes: Annotated[int, Field(ge=1)] | None = None
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    """Only administrators may set a priority above 0."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """Only of a paused trainer whose fragments have left, and more than it has finished."""


class PauseRequest(BaseModel):
    """Why a trainer is paused."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=500)] = ""


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
    held: bool = False
    """Whether there is a hold, in which case nothing starts before it ends."""


class SeriesPoint(BaseModel):
    """One point of a trainer's charts: step, nodes, loss and rate at one time."""

    at: float
    step: int
    nodes: int | None
    """Number of nodes; null if it is unknown because no service was listening."""
    loss: float | None
    """Null also while the trainer has no nodes, since nothing is computed."""
    samples_per_s: float | None


class Series(BaseModel):
    """A trainer's chart points, in order of time."""

    points: list[SeriesPoint]


class EvaluationView(BaseModel):
    """What the task's `evaluate` returned after one step."""

    step: int
    """Number of steps that were finished."""
    at: float
    """When the service heard of it, in Unix seconds."""
    metrics: dict[str, float]


class EvaluationList(BaseModel):
    """A trainer's evaluations, in order of steps."""

    evaluations: list[EvaluationView]


class LogText(BaseModel):
    """The last lines of a trainer's newest fragments, each after its node's name."""

    lines: list[str]


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


class TokenView(BaseModel):
    """A token without its text."""

    id: str
    name: str
    """The user who holds it."""
    role: str
    label: str
    created_at: float
    expires_at: float | None
    used_at: float | None
    """Its last use, to about five minutes; null before the first one."""


class NewToken(TokenView):
    """A token that was just made; its text is told this once."""

    token: str


class TokenList(BaseModel):
    """Tokens, in the order in which they were made."""

    tokens: list[TokenView]


class TokenRequest(BaseModel):
    """A token to be made."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*$")]
    role: Literal["hook", "viewer", "user", "admin"] = "user"
    label: Annotated[str, Field(max_length=63, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    expires_in_s: Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)] | None = None
    """Seconds until it expires; null: it is valid until it is revoked."""


class SessionRequest(BaseModel):
    """The token to sign in with."""

    model_config = ConfigDict(extra="forbid")

    token: Annotated[str, Field(min_length=1, max_length=500)]


class SessionView(BaseModel):
    """Who the caller is."""

    name: str
    role: str
    expires_at: float | None
    """When the session or token expires; null: it is valid until it is revoked."""
    may_submit: bool
    """Whether the caller may submit and retry trainers here."""


class RotateRequest(BaseModel):
    """How long the token that is replaced stays valid."""

    model_config = ConfigDict(extra="forbid")

    overlap_s: Annotated[float, Field(ge=0, le=30 * 86400.0, allow_inf_nan=False)] = 3600.0


class ForegroundStartView(BaseModel):
    """A foreground job that has started."""

    job: str
    started_at: float
    num_nodes: int
    delay_s: float
    """Seconds that it waited for fragments to leave its nodes."""


class DelayPeriod(BaseModel):
    """The foreground jobs that started in one period, and how long they waited."""

    from_at: float
    to_at: float
    starts: int
    p50_s: float | None
    p99_s: float | None
    max_s: float


class ForegroundStarts(BaseModel):
    """Foreground jobs that have started."""

    starts: list[ForegroundStartView]
    next: str | None
    """`before` of the page of earlier ones; null if there are none."""
    trend: list[DelayPeriod]
    """By period, over the whole time that was asked for."""


class HoleList(BaseModel):
    """Holes, in order of their start."""

    holes: list[Interval]
    next: str | None = None
    """`before` of the page of earlier holes; null if there are none."""


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


class Explanation(BaseModel):
    """Why a trainer has its number of nodes, and where it stands."""

    trainer: str
    nodes: int
    granted: int
    why: str
    """The plan's reason as a code word. If the size does not follow from a plan, the trainer's status, or
    `no_plan`."""
    status: Status
    reason: str
    """One sentence that says where the trainer stands and why."""
    condition: str = ""
    """Sentences on what is wrong with a live trainer."""
    plan: int | None
    """Number of the plan that the size follows from, if it does."""


class Event(BaseModel):
    """Something that happened; also the data of the event stream."""

    id: int
    at: float
    kind: str
    """`trainer.submitted`, `trainer.running`, `trainer.waiting`, `trainer.finished`, `trainer.failed`,
    `trainer.cancelled`, `trainer.changed`, `trainer.warning`, `trainer.guaranteed`,
    `trainer.paused`, `trainer.unpaused`, `trainer.retried`, `generation.formed`,
    `node.hole`, `node.foreground`, `node.unavailable`, `plan.made`, `plan.failed`,
    `fragment.launched`, `fragment.ready`, `fragment.left`, `fragment.lost`, `checkpoint.written`,
    `notice.failed`, `setting.changed`, `service.started`, `service.held`, `service.resumed`,
    `service.stopping`."""
    subject: str
    """Name of the trainer or node that the event is about."""
    message: str
    data: dict[str, Any] = {}


class EventList(BaseModel):
    """Events, in order of time."""

    events: list[Event]


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
    harvested_node_s: float = 0.0
    """Node-seconds that fragments have trained since the service was set up, however long ago."""
    foreground_jobs_started: int
    foreground_delay_p50_s: float | None
    foreground_delay_p99_s: float | None
    foreground_delay_max_s: float | None
    foreground_delay_last_s: float | None = None
    """Delay of the last foreground start; all delays are the seconds that a job waited for our fragments to
    leave."""
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


class HoldRequest(BaseModel):
    """The reason for a hold."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=500)] = ""


class NoticeView(BaseModel):
    """A notice to one recipient, and its outcome so far."""

    id: str
    event: str
    trainer: str
    """The trainer's name."""
    recipient: str
    """The recipient; a webhook's path is left out, since whoever knows it may post there."""
    created_at: float
    attempts: int
    sent_at: float | None
    next_at: float | None
    """When delivery is attempted next; null once the notice was accepted or given up."""
    error: str
    """Why the last attempt failed; empty if it did not."""


class NoticeList(BaseModel):
    """Notices, in order of time."""

    notices: list[NoticeView]


class AuditEntry(BaseModel):
    """One act of a user or an administrator."""

    id: int
    at: float
    actor: str
    """Who acted: the token's name, or the account that ran a command on the service's machine."""
    role: str
    """Role of the actor's token; `local` for a command on the service's machine."""
    token: str
    """Id of the token; empty without one."""
    request: str
    """Id of the HTTP request, as in its answer's header `X-Request-ID`."""
    address: str
    """Address that the request came from."""
    action: str
    """What was done, such as trainer.cancelled; `refused` where the actor may not do it."""
    subject: str
    """Name of the trainer, user or token concerned; of a refused request its method and path."""
    owner: str | None
    """User whose trainer or token is concerned."""
    refused: bool
    details: dict[str, Any]


class AuditLog(BaseModel):
    """A part of the audit log, the newest entry first."""

    entries: list[AuditEntry]
    next: int | None
    """`before` of the request for the entries before these; null if there are none."""


class LedgerEntry(BaseModel):
    """What one user's trainers had in one month, in node-hours, and how long others waited for them."""

    month: str
    """By UTC, such as `2026-11`."""
    user: str
    """Name of the user's tokens; empty for trainers without one."""
    lent_node_h: float
    trained_node_h: float
    """Node-hours lent without those that were lost to the five causes below."""
    warm_up_node_h: float
    grow_node_h: float
    """Stalls because nodes joined; the next two: because they left, and because they were lost."""
    shrink_node_h: float
    loss_node_h: float
    repeated_node_h: float
    """Training of steps that had to be repeated."""
    foreground_delay_s: float
    """Seconds that foreground jobs waited for the user's fragments."""


class Ledger(BaseModel):
    """The ledger of some months, the newest first, and within a month by user."""

    from_month: str
    to_month: str
    entries: list[LedgerEntry]


class QuotaLimits(BaseModel):
    """Limits of one user; null: what the settings say."""

    model_config = ConfigDict(extra="forbid")

    trainers: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Live trainers."""
    nodes: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Nodes of all trainers together."""
    node_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Node-hours in a calendar week, which begins on Monday, 00:00 UTC."""
    storage_gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """GiB of checkpoints."""
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest weight of a trainer."""


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


class QuotaUse(BaseModel):
    """What a user has now, and has had this week."""

    trainers: int
    nodes: int
    node_hours: float
    """Up to a minute ago."""
    storage_gib: float | None
    """Null in lists, where it would take too long to measure."""


class QuotaView(BaseModel):
    """A user's quota and its use."""

    user: str
    own: bool
    """Whether an administrator has set limits for this user."""
    limits: QuotaLimits
    """The limits that apply; null: there is none."""
    used: QuotaUse


class QuotaList(BaseModel):
    """Quotas, in order of the users' names."""

    quotas: list[QuotaView]


class NoticeTest(NotifySpec):
    """A recipient to send a test notice to."""


class NoticeTested(BaseModel):
    """Whether a test notice was sent, to whom, and the error if not."""

    sent: bool
    recipient: str
    error: str


class ForegroundJobRequest(BaseModel):
    """A foreground job for the embedded cluster."""

    model_config = ConfigDict(extra="forbid")

    nodes: Annotated[int, Field(ge=1)]
    run_s: Annotated[float, Field(gt=0, le=3600)]


class ForegroundJobView(BaseModel):
    """The foreground job that was submitted."""

    job: str


class ReadinessCheck(BaseModel):
    """One part of the service that has to work for it to be ready."""

    name: Literal["database", "schema", "controller", "scheduler"]
    ok: bool
    detail: str | None
    """What is wrong with it; null if nothing is."""


class Readiness(BaseModel):
    """Whether the service can do its work, and what keeps it from it."""

    ready: bool
    checks: list[ReadinessCheck]


class ProblemDetails(BaseModel):
    """RFC 9457 problem details; media type application/problem+json."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[str] = []
    """One line for each thing to change, if there are several."""
