"""What a strategy builds of one rank of a trainer, and how it is found for a spec."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from oakum_worker.keeping.keeper import Keeper, KeeperContext
from oakum_worker.parallel.split_state import SplitState
from oakum_worker.parallel.step_engine import StepEngine
from oakum_worker.spec import TrainerSpec
from oakum_worker.strategy_table import strategy_of
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


def assemble(ingredients: Ingredients) -> Assembly:
    """Build engine, state and keeper by the strategy that the spec asks for. Raises `TaskError` where the task
    does not go with the strategy. Returns the three."""
    strategy = strategy_of(ingredients.spec)
    module = strategy.module or f"{__package__}.{strategy.name.replace('-', '_')}"
    build: Callable[[Ingredients], Assembly] = importlib.import_module(module).assemble
    return build(ingredients)


def passes_are_collective(task: Task, spec: TrainerSpec) -> bool:
    """Whether ranks exchange data within a forward pass, so that no rank can repeat one on its own: in the
    strategy, for batches that are gathered or for statistics of batch normalisation."""
    synchronised = spec.parallel.batch_norm == "synchronised"
    return task.gathers or synchronised or strategy_of(spec).passes_are_collective
