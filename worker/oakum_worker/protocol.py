"""The messages between a fragment's agent and the service.

Both sides are level-triggered: a report says everything the agent knows and a directive everything it has to
obey, so a lost, repeated or reordered message costs time and never correctness. A restarted service reads the
next report and knows where the fragment stands.

    agent -> service   POST /v1/fragments/{id}/report       FragmentReport
    agent <- service   GET  /v1/fragments/{id}/directive    Directive   (long poll: after=revision, wait_s)

A 410 Gone on either call means that the service no longer wants the fragment: it leaves at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from oakum_worker.spec import TrainerSpec

# What a report says ends up in the database and in the next plan: nothing that either would choke on is let in.
Number = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Message(BaseModel):
    # Unknown fields are ignored so that a newer service can talk to an older agent and the other way round.
    model_config = ConfigDict(extra="ignore", frozen=True)


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
    """Was told to leave by a signal: train on without it."""
    LEFT = "left"
    """No longer a member; the agent is exiting."""
    FINISHED = "finished"
    """The trainer's last step is done and its final checkpoint durable."""
    FAILED = "failed"
    """The user's code failed; `failure` says how."""


class Endpoint(_Message):
    """Where a rank listens for the rendezvous of generations in which it is rank 0."""

    host: str
    port: int


class Member(_Message):
    """A fragment's place in a generation."""

    fragment: str
    node: str
    ranks: tuple[Endpoint, ...]
    """One endpoint for each rank process, in local rank order."""


class Generation(_Message):
    """A trainer's membership. Members are ordered: survivors first, the oldest survivor is rank 0.

    An empty member list ends training for now: the ranks stop at the next step boundary, and the first rank of
    the fragment named `closer` writes a durable checkpoint before it leaves.
    """

    number: int
    members: tuple[Member, ...]
    closer: str | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks of all members."""
        return sum(len(member.ranks) for member in self.members)

    def first_rank(self, fragment: str) -> int | None:
        """Global rank of the fragment's local rank 0, or None where it is no member."""
        rank = 0
        for member in self.members:
            if member.fragment == fragment:
                return rank
            rank += len(member.ranks)
        return None


class Directive(_Message):
    """All that a fragment has to obey.

    A generation above the one the ranks are in is switched to at a step boundary that the ranks agree on.
    Every generation up to `over` has lost a member: its ranks must stop using it at once, collectives in
    flight included, and report BROKEN.
    """

    revision: int
    generation: Generation | None = None
    over: int = 0
    leave: bool = False
    """This fragment is no longer wanted: leave as soon as the generation allows."""


class Progress(_Message):
    """Where training stands, as rank 0 sees it."""

    generation: Number
    nodes: Number
    step: Number
    """Finished optimizer steps since the trainer began."""
    total_steps: int
    epoch: Number
    samples: int
    """Samples consumed since the trainer began."""
    total_samples: int | None = None
    """Samples of all epochs; None where the agent is too old to tell."""
    global_batch: Number | None = None
    """Samples of the last step: a schedule may change them."""
    learning_rate: float | None = None
    """Of the optimizer's first parameter group, for the next step."""
    loss: float | None = None
    """Mean loss of the steps since the last report; of the last step alone in a trainer's last report."""
    samples_per_s: float | None = None
    """Since the last report or, where that is later, the beginning of the generation."""
    checkpoint_step: Number | None = None
    """Step of the newest durable checkpoint that this rank 0 has written or found."""
    predicted_curve: Annotated[tuple[tuple[Number, float], ...], Field(max_length=256)] = ()
    """(nodes, samples per second) as the worker predicts them from what it has measured of the model's layers."""
    metrics: dict[str, float] = {}
    """What the task's `evaluate` last returned, as far as it is finite: JSON knows no other numbers."""
    final: bool = False
    """Whether this is what training has ended with."""

    @field_validator("metrics", mode="before")
    @classmethod
    def _finite_only(cls, metrics: Any) -> Any:
        if not isinstance(metrics, Mapping):
            return metrics
        return {
            name: value
            for name, value in metrics.items()
            if value is not None and (not isinstance(value, float) or math.isfinite(value))
        }


class Switch(_Message):
    """How a generation began, as its rank 0 saw it."""

    generation: Number
    step: Number
    """Finished steps of the state it began with."""
    stall_s: Seconds | None = None
    """From the end of the last step before it to the end of its first own step; None after a cold start."""
    step_s: Seconds | None = None
    """Of these, its first own step's, which is no part of what a rescale costs; None where it was not measured."""
    source: Annotated[str, Field(max_length=16)]
    """`survivor`, `memory`, `checkpoint` or `scratch`: where the state came from."""


class Failure(_Message):
    """An error in the user's code or in the worker."""

    stage: str
    """`load` (import, build, data) or `train`."""
    step: Number = 0
    """Finished steps when it happened."""
    message: str
    """One or two sentences: what failed and what to change."""
    traceback: str = ""


class FragmentReport(_Message):
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
    """Newest generation that is unusable for these ranks."""
    startup_s: Seconds | None = None
    """From the agent's start to READY."""
    progress: Progress | None = None
    switches: tuple[Switch, ...] = ()
    """The newest few; generations may follow each other faster than reports."""
    failure: Failure | None = None
    signalled: bool = False
    """The scheduler has asked for the node."""
    signalled_at: Seconds | None = None
    """When, in Unix seconds."""
    warnings: tuple[str, ...] = ()
    """What went wrong without stopping training, such as a corrupt checkpoint that was skipped."""


class FragmentConfig(_Message):
    """Everything an agent needs to start, written by the service into the fragment's folder (mode 0600)."""

    fragment: str
    trainer: str
    node: str
    node_address: str
    """Address under which the other nodes reach this one."""
    service_url: str
    service_file: str | None = None
    """JSON file `{"url": ...}` to read again when the service does not answer: it may have moved."""
    token: str
    """Valid for this fragment's two calls alone."""
    spec: TrainerSpec
    checkpoint_dir: str
    leave_deadline_s: float = 1.0
    """Seconds from SIGTERM to the agent's exit while other replicas train on."""
    grace_s: float = 10.0
    """Seconds from SIGTERM after which the scheduler kills: the time for a last replica's checkpoint."""
    rank_timeout_s: float = 5.0
    """Seconds without a sign of life after which a rank is taken for hung, killed and started anew."""
    orphan_timeout_s: float = 120.0
    """Seconds without a word from the service after which the agent checkpoints and exits."""
