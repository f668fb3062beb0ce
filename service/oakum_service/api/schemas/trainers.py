"""Documents of trainers: what one is, how it gets on, and what users may change about it."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from oakum_service.api.schemas.hold import HoldView
from oakum_service.documents.fragment_slots import Slots
from oakum_service.standing import Status
from oakum_service.states import TimeUse, TrainerState
from oakum_worker.protocol import BestEvaluation
from oakum_worker.spec import Sizes, TrainerSpec
from oakum_worker.spec_options import Notes, SlurmSpec, Tags

_ANNOTATIONS = frozenset({"tags", "add_tags", "remove_tags", "notes"})
"""What may be changed at any time, since it changes nothing about training."""


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
    """Time from the launch of a fragment until it trains."""
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
    slots_per_fragment: Slots = 1
    """How many slots of one node each of its fragments takes where nodes are given in parts: as its spec says or,
    with `auto`, as was decided before it got its present fragments."""
    slots_reason: str = ""
    """Why, as one sentence, if its spec leaves that to the service and nodes are given in parts."""
    curve_reason: str = ""
    """Where its planned rates come from, as one sentence, if they are not those that are measured."""
    may_retry: bool = False
    """Whether it has ended in a state after which a retry lets it go on."""

    @model_validator(mode="before")
    @classmethod
    def _as_an_older_service_tells(cls, given: Any) -> Any:
        """Take the state as the status of a document from an older service, which has no statuses."""
        if isinstance(given, dict) and "status" not in given and "state" in given:
            return {**given, "status": given["state"]}
        return given


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
    """What can be changed about a live trainer (`oakum scale`); tags and notes also of one that has ended (`oakum
    annotate`)."""

    model_config = ConfigDict(extra="forbid")

    min_nodes: Annotated[int, Field(ge=1)] | None = None
    max_nodes: Annotated[int, Field(ge=1)] | None = None
    sizes: Sizes | None = None
    """The only numbers of nodes that it is given; `any` for every number."""
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    """Only administrators may set a priority above 0."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """Only of a paused trainer whose fragments have left, and more than it has finished."""
    slurm: SlurmSpec | None = None
    """What later jobs ask Slurm for, of what an administrator allows: a field that is left out stays as it is, and
    null takes it back."""
    tags: Tags | None = None
    """All its tags, in place of those it has."""
    add_tags: Tags | None = None
    """Tags that it has from then on, beside the others."""
    remove_tags: Tags | None = None
    """Tags that it no longer has; no error if it has not had them."""
    notes: Notes | None = None

    @model_validator(mode="after")
    def _has_one_way_to_change_tags(self) -> Self:
        if self.tags is not None and (self.add_tags or self.remove_tags):
            raise ValueError("tags are all tags there will be: give them, or those to add and to remove")
        if both := sorted({*(self.add_tags or ())} & {*(self.remove_tags or ())}):
            raise ValueError(f"{both[0]!r} is to be added and removed: give it once")
        return self

    def for_spec(self, spec: TrainerSpec) -> TrainerChange:
        """This change of the trainer with that spec, with all tags in place of those to add and to remove."""
        if self.add_tags is None and self.remove_tags is None:
            return self
        tags = dict.fromkeys((*spec.tags, *(self.add_tags or ())))
        left = tuple(tag for tag in tags if tag not in (self.remove_tags or ()))
        return self.model_copy(update={"tags": left, "add_tags": None, "remove_tags": None})

    @property
    def is_annotation(self) -> bool:
        """Whether tags or notes are to change, and nothing else."""
        given = self.given
        return bool(given) and given.keys() <= _ANNOTATIONS

    @property
    def given(self) -> dict[str, Any]:
        """What is to change, by the names of the spec's fields."""
        given = self.model_dump(mode="json", exclude_none=True, exclude={"slurm"})
        return given if self.slurm is None else given | {"slurm": self.slurm.model_dump(exclude_unset=True)}

    def applied_to(self, spec: TrainerSpec) -> TrainerSpec:
        """The spec with the change; bounds of other sizes follow from these where they are not given. Raises
        pydantic's `ValidationError` where the result is no spec."""
        fields = spec.model_dump(mode="json")
        superseded = () if self.sizes in (None, "any") else ("min_nodes", "max_nodes")
        kept = {name: value for name, value in fields.items() if name not in superseded}
        given = self.given
        if self.slurm is not None:
            given["slurm"] = fields["slurm"] | given["slurm"]
        return TrainerSpec.model_validate(kept | given)


class PauseRequest(BaseModel):
    """Why a trainer is paused."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=500)] = ""


class LogText(BaseModel):
    """The last lines of a trainer's newest fragments, each after its node's name."""

    lines: list[str]


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
    look_ahead_reason: str = ""
    """How far ahead that plan looks and why, as one sentence."""
    slots_reason: str = ""
    """How many slots each of its fragments takes and why, as one sentence, if its spec leaves that to the
    service and nodes are given in parts."""
    curve_reason: str = ""
    """Where its planned rates come from, as one sentence, if they are not those that are measured."""
