"""The interface of a strategy: a condition on the spec, and how to build what depends on the strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from oakum_worker.keeping.keeper import Keeper, KeeperContext
from oakum_worker.parallel.split_state import SplitState
from oakum_worker.parallel.step_engine import StepEngine
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


@dataclass(frozen=True)
class Assembly:
    """The parts of one rank of a trainer that depend on the strategy: engine, keeper and split state."""

    engine: StepEngine
    make_keeper: Callable[[KeeperContext], Keeper]
    """Makes the keeper, with the state that an earlier process of this rank has left in memory. Call it once."""
    state: SplitState | None = None
    """The split state that the keeper carries; None where each rank has the whole state."""


class Ingredients(NamedTuple):
    """The arguments from which a strategy builds an assembly."""

    task: Task
    spec: TrainerSpec
    measures_noise: bool = False
    """Whether the engine's steps have to return `GradientNorms`."""


@dataclass(frozen=True)
class Strategy:
    """A way to spread a trainer's work and state over its ranks."""

    name: str
    serves: Callable[[TrainerSpec], bool]
    """Whether a spec asks for this strategy."""
    assemble: Callable[[Ingredients], Assembly]
    """Builds the assembly; imports late what other strategies do not need. Raises `TaskError` where the task does
    not go with the strategy."""
    splits_state: bool = False
    """Whether each rank has only a part of the state, so that more ranks mean less memory for each."""
    splits_batches: bool = False
    """Whether a rank computes its share of a batch in several parts whatever the spec says of micro-batches."""
    passes_are_collective: bool = False
    """Whether ranks exchange data within a forward pass, so that no rank can repeat one on its own."""
    evaluates_alone: bool = True
    """Whether one process without the trainer's other ranks can evaluate the model."""
    copies_model: bool = False
    """Whether another object is trained than the model that the entrypoint has built."""
    takes_gradients: bool = True
    """Whether parameters are trained by gradients of the loss."""
