"""Lists the strategies, and chooses the one for a spec."""

from __future__ import annotations

from oakum_worker.spec import TrainerSpec
from oakum_worker.strategies.map_reduce import MAP_REDUCE
from oakum_worker.strategies.pipelined import PIPELINED
from oakum_worker.strategies.replicated import REPLICATED
from oakum_worker.strategies.sharded import SHARDED
from oakum_worker.strategies.strategy import Assembly, Ingredients, Strategy
from oakum_worker.strategies.tensor import TENSOR
from oakum_worker.strategies.tensor_stages import TENSOR_STAGES
from oakum_worker.task import Task

_STRATEGIES = [TENSOR_STAGES, PIPELINED, TENSOR, SHARDED, MAP_REDUCE, REPLICATED]
"""Strategies in the order in which a spec is offered to them; the last one serves every spec."""


def register(strategy: Strategy) -> None:
    """Add a strategy, which is asked before all strategies registered so far. Raises `ValueError` where its
    name is in use."""
    if any(known.name == strategy.name for known in _STRATEGIES):
        raise ValueError(f"there is a strategy {strategy.name!r} already: choose another name")
    _STRATEGIES.insert(0, strategy)


def strategy_of(spec: TrainerSpec) -> Strategy:
    """The strategy that the spec asks for."""
    return next(strategy for strategy in _STRATEGIES if strategy.serves(spec))


def passes_are_collective(task: Task, spec: TrainerSpec) -> bool:
    """Whether ranks exchange data within a forward pass, so that no rank can repeat one on its own: in the
    strategy, for batches that are gathered or for statistics of batch normalisation."""
    synchronised = spec.parallel.batch_norm == "synchronised"
    return task.gathers or synchronised or strategy_of(spec).passes_are_collective


def assemble(ingredients: Ingredients) -> Assembly:
    """Build engine, state and keeper by the strategy that the spec asks for. Raises `TaskError` where the task
    does not go with the strategy. Returns the three."""
    return strategy_of(ingredients.spec).assemble(ingredients)
