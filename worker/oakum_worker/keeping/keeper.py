"""What a rank process asks of a keeper of its trainer's state, and what a keeper asks of state and process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.host_memory import HostMemory
from oakum_worker.parallel.holdings import Rows
from oakum_worker.protocol import BestEvaluation, Generation
from oakum_worker.spec import TrainerSpec


class Keeper(Protocol):
    """Keeps the state of one rank's training loop across generations, restarts and losses, together with the other
    ranks' keepers."""

    @property
    def holds_state(self) -> bool:
        """Whether this rank has the trainer's state, or its part of a split state, so that training can
        continue from it."""

    def begin(self, generation: Generation, rank: int) -> str:
        """Bring all ranks of the generation, whose group the loop has joined, to the same finished step.

        Returns where the state came from: `survivor`, `memory`, `checkpoint` or `scratch`. Raises `GroupError`.
        """

    def durable_due(self) -> bool:
        """Whether it is time for a durable checkpoint. Only rank 0's answer is used."""

    def after_step(self, *, durable: bool) -> bool:
        """Make the copies and checkpoints that are due at this step boundary. Returns whether a rank that was told
        to close may close here. `durable` says whether rank 0 has asked for a durable checkpoint, and is equal on
        every rank."""

    def keep_best(self, best: BestEvaluation) -> None:
        """Write the state of this step boundary, that of `best`, as a durable checkpoint that stays until a better
        one is written. Called on every rank of the generation."""

    def before_switch(self, generation: Generation, rank: int) -> None:
        """Prepare for the next generation at the step boundary at which all ranks leave `generation`, whose group
        still stands. `rank` is this rank's number in it."""

    def finish(self) -> None:
        """Save the final state of a finished trainer. Returns, on each rank, when the checkpoint is durable."""

    def close(self, *, save: bool) -> None:
        """Prepare for this rank's end. With `save`, also write its state as a durable checkpoint, since no other
        rank goes on with it."""

    def close_at_once(self, *, save: bool) -> bool:
        """Called from another thread in the middle of a step: do what `close` does, and return True; or return
        False if that has to wait for the step's end."""


class KeptState(Protocol):
    """The methods of a training loop's state that keepers call."""

    is_evaluating: bool
    """Whether an evaluation runs, in which the model's weights may differ from the state's."""

    @property
    def step_count(self) -> int:
        """Finished steps."""

    def state_dict(self) -> dict[str, Any]:
        """The whole state, on a rank that has it. Its tensors are the live ones, not copies."""

    def load_state_dict(self, loaded: dict[str, Any]) -> None:
        """Continue from a whole state. Raises `CheckpointError` where it does not fit the task."""

    def adopt(self, loaded: dict[str, Any]) -> None:
        """Begin from another trainer's whole state. Raises `CheckpointError` where it does not fit the task."""

    def share(self, source: int) -> None:
        """Copy the whole state of rank `source` to every rank of the group. Collective. Raises `GroupError` when a
        rank is gone."""

    def held_at_boundary(self) -> AbstractContextManager[dict[str, Any]]:
        """Context that gives another thread the whole state of the last finished step, which does not change
        within the context."""

    def rest(self) -> dict[str, Any]:
        """The state except the model's and the optimizer's: scheduler, cursor and further parts."""

    def go_on_from(self, rest: Mapping[str, Any]) -> None:
        """Continue from a result of `rest`, once the model and the optimizer have their states."""


class KeeperProcess(Protocol):
    """The methods of a rank's process that keepers call."""

    def successor(self, at_least: int) -> tuple[int, int | None] | None:
        """Wait for the next generation, of number `at_least` or above. Returns its number and this process's rank
        in it (None: no member). Returns None in place of the pair where this process has been told to leave."""

    def closing(self) -> bool:
        """Whether this process has been told to leave without waiting for another generation."""

    def initial_values(self) -> Rows:
        """Name -> parameter or buffer of a model that is built anew, with the trainer's initial values."""

    def warn(self, text: str) -> None:
        """Send the user a warning that does not end training."""


@dataclass(frozen=True)
class KeeperContext:
    """What a strategy needs to build a rank's keeper."""

    state: KeptState
    spec: TrainerSpec
    checkpoints: DurableCheckpoints
    process: KeeperProcess
    memory: HostMemory | None = None
    """The node's memory for a copy of the state, which outlives the process; None except on local rank 0."""
