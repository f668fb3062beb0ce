"""The pipelined strategy: each rank computes some of the layers for its replica's share of each global batch."""

from __future__ import annotations

from functools import partial

from oakum_worker.gathering import refused_gathering
from oakum_worker.parallel.normalisation import warn_of_batch_norm
from oakum_worker.strategies.assembly import Assembly, Ingredients
from oakum_worker.strategies.sharded import keep_split_state


def assemble(ingredients: Ingredients) -> Assembly:
    """Build a pipeline trainer. Raises `TaskError` for a task that names no layers, or whose loss gathers samples.
    Returns its parts."""
    # Imported late, because other trainers do not need a pipeline.
    from oakum_worker.parallel.pipeline.arranging import Arranger, layers_of
    from oakum_worker.parallel.pipeline.replicas import ReplicaEngine
    from oakum_worker.parallel.pipeline.state import StageState

    task = ingredients.task
    if task.gathers:
        raise refused_gathering("parallel.pipeline", "leave it out, or use data: sharded")
    chain, arranger = layers_of(task), Arranger(task, ingredients.spec)
    warn_of_batch_norm(task.model)
    state = StageState(task, chain, arranger)
    engine = ReplicaEngine(chain, state, arranger)
    return Assembly(engine, partial(keep_split_state, state=state, engine=engine), state)
