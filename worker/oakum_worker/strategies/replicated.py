"""The replicated strategy: each rank has the whole model, and computes its share of each global batch."""

from __future__ import annotations

from oakum_worker.keeping.keeper import Keeper, KeeperContext
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.strategies.assembly import Assembly, Ingredients


def keep_whole_state(context: KeeperContext) -> Keeper:
    """Make the keeper of a state that each rank has as a whole; it takes up a copy left in the node's memory.
    Returns the keeper."""
    from oakum_worker.keeping.replicated import ReplicatedKeeper  # late: a loop without a process needs none

    settings = context.spec.checkpoint
    keeper = ReplicatedKeeper(context.state, settings, context.checkpoints, context.memory, context.process.warn)
    keeper.recall()
    return keeper


def assemble(ingredients: Ingredients) -> Assembly:
    """Build a replicated trainer. Returns its parts."""
    spec = ingredients.spec
    reducer = GradientReducer(
        ingredients.task.model,
        measure_noise=ingredients.measures_noise,
        all_reduce=spec.parallel.all_reduce,
    )
    return Assembly(reducer, keep_whole_state)
