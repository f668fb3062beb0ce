"""The messages between a fragment's agent and the service.

Both sides are level-triggered: a report says everything the agent knows and a directive everything it has to
obey, so a lost, repeated or reordered message costs time and never correctness. A restarted service reads the
next report and knows where the fragment stands.

    agent -> service   POST /v1/fragments/{id}/report       FragmentReport
    agent <- service   GET  /v1/fragments/{id}/directive    Directive   (long poll: after=revision, wait_s)

A 410 Gone on either call means that the service no longer wants the fragment: it leaves at once.
"""

from __future__ import annotations

import itertools
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from oakum_worker.metric_values import Metrics

# The fields of a report go into the database and the next plan, so a value that either cannot take is refused.
Number = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


_LONGEST_TEXT, _LONGEST_TRACEBACK = 4000, 20_000


def _newest(most: int) -> AfterValidator:
    """Leaves the last ones of more than so many."""
    return AfterValidator(lambda items: items[-most:])


# Texts and lists are cut, not refused: an agent without whose reports a fragment counts as lost sends them.
_Text = Annotated[str, AfterValidator(lambda text: text[:_LONGEST_TEXT])]
_Traceback = Annotated[str, _newest(_LONGEST_TRACEBACK)]


def _on_the_wire(name: str, wire_name: str) -> Any:
    """A pydantic field that has the name `wire_name` in JSON; code may also set it by `name`, its name in
    Python."""
    return Field(validation_alias=AliasChoices(wire_name, name), serialization_alias=wire_name)


class Message(BaseModel):
    """Base of what agents and services of neighbouring versions tell each other."""

    # Unknown fields are ignored so that a newer service can talk to an older agent and the other way round. Errors
    # leave out what was given: it may be a secret.
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class Phase(StrEnum):
    """How far a fragment has come, as its agent sees it."""

    WARMING = "warming"
    """The ranks import, build the task and load data; others train on."""
    READY = "ready"
    """All ranks can join a generation at once."""
    TRAINING = "training"
    """A member of the generation the report names."""
    BROKEN = "broken"
    """The generation the report names is unusable: a collective failed or was cut."""
    LEAVING = "leaving"
    """A signal told the agent to leave; the other members train on without this fragment."""
    LEFT = "left"
    """No longer a member; the agent is exiting."""
    FINISHED = "finished"
    """The trainer's last step is done and its final checkpoint durable."""
    FAILED = "failed"
    """The user's code failed; `failure` says how."""


class Held(StrEnum):
    """Where on a fragment's node the trainer's state, or the fragment's part of it, is at present."""

    NOWHERE = "nowhere"
    MEMORY = "memory"
    """The ranks are being restarted; they go on from a copy of the state in memory that the agent holds."""
    RANKS = "ranks"
    """At least one rank process holds the state, or its part of it, and training can go on from there."""


class Endpoint(Message):
    """Host and port on which a rank listens; the other ranks of a generation meet there if it is rank 0."""

    host: str
    port: int


class Member(Message):
    """A fragment's place in a generation."""

    fragment: str
    node: str
    ranks: tuple[Endpoint, ...]
    """One endpoint for each rank process, in local rank order."""


class Station(NamedTuple):
    """Where one rank stands."""

    node: str
    fragment: str


def _nodes_together(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The members with those of one node one after the other, nodes in the order of their first members."""
    by_node: dict[str, list[Member]] = {}
    for member in members:
        by_node.setdefault(member.node, []).append(member)
    return tuple(itertools.chain(*by_node.values()))


class Generation(Message):
    """A trainer's membership. Members are ordered: survivors first, the oldest survivor is rank 0. The members of
    a node follow its first one, so the ranks of a node have consecutive numbers.

    An empty member list ends training for now: the ranks stop at the next step boundary, and the first rank of
    the fragment named `saver` writes a durable checkpoint before it leaves.
    """

    number: int
    members: Annotated[tuple[Member, ...], AfterValidator(_nodes_together)]
    saver: Annotated[str | None, _on_the_wire("saver", "closer")] = None
    has_state: bool = False
    """Whether the service knew of a member with the trainer's state when it made the generation. If no member has
    the state after all, the ranks break the generation and do not begin anew: another fragment may have it."""
    secret: str | None = Field(default=None, repr=False)
    """What the members alone know, in hexadecimal digits: by it they know each other. None where the service
    is too old to tell."""

    @property
    def world_size(self) -> int:
        """Number of ranks of all members."""
        return sum(len(member.ranks) for member in self.members)

    @property
    def stations(self) -> tuple[Station, ...]:
        """Where the ranks stand, in their order."""
        return tuple(Station(member.node, member.fragment) for member in self.members for _ in member.ranks)

    def first_rank(self, fragment: str) -> int | None:
        """Global rank of the fragment's local rank 0, or None where it is no member."""
        rank = 0
        for member in self.members:
            if member.fragment == fragment:
                return rank
            rank += len(member.ranks)
        return None


class Directive(Message):
    """All that the service orders a fragment to do, complete in each message.

    A generation above the one the ranks are in is switched to at a step boundary that the ranks agree on.
    Every generation up to `ended_through` has lost a member: its ranks must stop using it at once, collectives in
    flight included, and report BROKEN.
    """

    revision: int
    generation: Generation | None = None
    ended_through: Annotated[int, _on_the_wire("ended_through", "over")] = 0
    leave: bool = False
    """This fragment is no longer wanted: leave as soon as the generation allows."""


class Evaluation(Message):
    """What the task's `evaluate` returned after one step."""

    step: Number
    """Number of steps that were finished."""
    metrics: Metrics


class BestEvaluation(Message):
    """The best evaluation so far by the metric that the spec names; its checkpoint is kept."""

    metric: Annotated[str, Field(max_length=255)]
    value: Annotated[float, Field(allow_inf_nan=False)]
    step: Number
    """Number of steps that were finished."""


class TrainingProgress(Message):
    """Where training stands, as rank 0 sees it."""

    generation: Number
    nodes: Number
    """Number of members: of nodes, or of parts of nodes."""
    step: Number
    """Finished optimizer steps since the trainer began."""
    total_steps: int
    epoch: Number
    samples: int
    """Samples consumed since the trainer began."""
    total_samples: int | None = None
    """Samples of all epochs; None where the agent is too old to tell."""
    global_batch: Number | None = None
    """Samples per step at present; a batch schedule or an adaptive batch changes this number."""
    learning_rate: float | None = None
    """Learning rate of the optimizer's first parameter group for the next step; None where the group has none."""
    loss: float | None = None
    """Mean loss of the steps since the last report; of the last step alone in a trainer's last report."""
    samples_per_s: float | None = None
    """Throughput since the last report or the beginning of the generation, whichever is later."""
    checkpoint_step: Number | None = None
    """Step of the newest durable checkpoint that the reporting rank 0 has written or found."""
    predicted_curve: Annotated[tuple[tuple[Number, float], ...], Field(max_length=256)] = ()
    """(nodes, samples per second) as the worker predicts them from what it has measured of the model's layers."""
    gain_together: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How many times as fast the ranks of a fragment are predicted to be, by measured links, as so many on
    different nodes; None where that is not known."""
    metrics: Metrics = {}
    """What the task's `evaluate` last returned."""
    evaluations: Annotated[tuple[Evaluation, ...], Field(max_length=64)] = ()
    """The newest evaluations of the reporting rank 0, the oldest first; empty where the agent is too old to tell.
    Several may fall between two reports."""
    best: BestEvaluation | None = None
    """None before the first evaluation, where the spec names no metric, and where the agent is too old to tell."""
    ended_early: Annotated[str, Field(max_length=1000)] = ""
    """Why training ended before its last epoch; empty where it did not."""
    final: bool = False
    """Whether the trainer has taken its last step; `loss` is then that step's."""


class Pace(Message):
    """How rank 0 spent the time of its latest steps, the running one included.

    The other ranks spend about as much time reading samples.
    """

    steps: Number
    """Steps finished within `seconds`; 0 where a single step takes longer than that."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Seconds spent within steps; the time between two steps is left out."""
    reading_s: Seconds
    """Part of `seconds` spent reading samples and making batches of them."""
    waiting_s: Seconds | None = None
    """Part of `seconds` spent waiting for other ranks; None where waiting cannot be told from computing."""


class Switch(Message):
    """How a generation began, as its rank 0 saw it."""

    generation: Number
    step: Number
    """Finished steps of the state that the generation began with."""
    stall_s: Seconds | None = None
    """Seconds from the end of the last step before the generation to the end of the generation's first step; None
    after a cold start."""
    step_s: Seconds | None = None
    """Part of `stall_s` that the generation's first step took, which is no cost of the rescale; None where it was
    not measured."""
    source: Annotated[str, Field(max_length=16)]
    """Where the state came from: `survivor`, `memory`, `checkpoint` or `scratch`."""


class Failure(Message):
    """An error in the user's code or in the worker."""

    stage: _Text
    """`load` (import, build, data), `train`, or `diverged`; another attempt would diverge again."""
    step: Number = 0
    """Finished steps when the error was raised."""
    message: _Text
    """One or two sentences: what failed and what to change."""
    identity: _Text = ""
    """Type, message and innermost line of the user's code; two errors with one identity count as one error."""
    traceback: _Traceback = ""


class Crash(Message):
    """An unexpected end of a rank process, after which the agent restarts the node's ranks or leaves."""

    number: Number
    """Number of this crash among the fragment's crashes, from 1."""
    generation: Number = 0
    """Generation that the rank was a member of; 0 where it was in none."""
    step: Number = 0
    """Finished steps when the rank ended, as far as the agent knows."""
    message: _Text
    """Why the process ended, or the error that it raised, and what to change."""
    identity: _Text = ""
    """`Failure.identity` of a raised error; empty where the process was killed or crashed."""
    is_explained: bool = False
    """Whether the cause in `message` is certain, so that many more attempts would end the same way."""
    traceback: _Traceback = ""


_Cores = Annotated[float, Field(ge=0, le=2**16, allow_inf_nan=False)]
_Bytes = Annotated[int, Field(ge=0, lt=2**53)]


class NodeUse(Message):
    """How much of its node was in use at one moment, and by the fragment itself, as the agent sees it. None where
    the node does not tell."""

    cores: _Cores | None = None
    """Number of the node's processors."""
    busy_cores: _Cores | None = None
    """Processors that were busy, on average since the moment before."""
    own_cores: _Cores | None = None
    """The part of these that the fragment's own processes kept busy."""
    memory_bytes: _Bytes | None = None
    """The node's memory, of which `used_bytes` cannot be had without swapping."""
    used_bytes: _Bytes | None = None
    own_bytes: _Bytes | None = None
    """Memory that the fragment's own processes have to themselves: without files and what they share."""
    gpus: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Number of GPUs that the fragment sees; of these tell the numbers below."""
    gpu_use: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    """Mean share of the time in which they computed."""
    gpu_memory_bytes: _Bytes | None = None
    gpu_used_bytes: _Bytes | None = None


def _or_none(given: Any, read: ValidatorFunctionWrapHandler) -> NodeUse | None:
    """The message, or None in place of one with numbers that cannot be."""
    try:
        use: NodeUse | None = read(given)
    except ValidationError:
        return None
    return use


class FragmentReport(Message):
    """All that an agent knows of its fragment."""

    phase: Phase
    sequence: Number
    """Rises with every report; the service ignores a report older than one it has seen."""
    pid: int
    host: str
    ranks: tuple[Endpoint, ...] = ()
    generation: Number = 0
    """Newest generation that the ranks have formed."""
    broken: Number = 0
    """Newest generation that is unusable for these ranks; 0 where none was."""
    holds: Held | None = None
    """Where the state is on this node now; restarted ranks may have none. None where the agent is too old to
    tell."""
    startup_s: Seconds | None = None
    """Seconds from the start of the first rank process until no rank was warming up any more."""
    progress: TrainingProgress | None = None
    pace: Pace | None = None
    """Pace of rank 0; None where the fragment does not have rank 0, or the agent is too old to tell."""
    switches: Annotated[tuple[Switch, ...], _newest(8)] = ()
    """The newest eight switches at most: generations may follow each other faster than reports."""
    failure: Failure | None = None
    """The error with which the fragment's ranks have ended; the agent does not restart them."""
    crashes: Annotated[tuple[Crash, ...], _newest(3)] = ()
    """The newest three crashes at most."""
    signalled: bool = False
    """The scheduler has asked for the node."""
    signalled_at: Seconds | None = None
    """Unix time, in seconds, at which the agent heard that the scheduler wants the node; None before."""
    signal: str = ""
    """Name of the signal by which the agent heard that, such as SIGTERM, or SIGUSR2 near the time limit; empty
    before, and where the agent is too old to tell."""
    warnings: Annotated[tuple[_Text, ...], _newest(10)] = ()
    """The newest ten warnings at most: faults that do not stop training, such as a corrupt checkpoint."""
    use: Annotated[NodeUse | None, WrapValidator(_or_none)] = None
    """What the agent has seen of its node since it last told; numbers that cannot be are left out, since no chart
    is worth a report. None where there is nothing new, or the agent is too old to tell."""

    @property
    def urgent(self) -> tuple[object, ...]:
        """The fields that decide on the membership: a report in which one of them has changed is to be posted at
        once."""
        return (
            self.phase,
            self.generation,
            self.broken,
            self.holds,
            self.ranks,
            self.failure,
            self.signalled,
            self.switches,
        )


REPORT_INTERVAL = "Oakum-Report-Interval"
"""Header of the answer to a report: seconds until the next report without urgent news."""
