"""The strategy of pipelines whose stages are grids: each rank has blocks of some layers' matrices."""

from __future__ import annotations

from functools import partial

from oakum_worker.gathering import refused_gathering
from oakum_worker.parallel.normalisation import warn_of_batch_norm
from oakum_worker.strategies.assembly import Assembly, Ingredients
from oakum_worker.strategies.sharded import keep_split_state
from oakum_worker.strategies.tensor import refuse_offloading


def assemble(ingredients: Ingredients) -> Assembly:
    """Build a trainer in pipelines of grids. Raises `TaskError` where the model, its loss or the optimizer cannot
    be divided. Returns its parts."""
    # Imported late, because other trainers do not need a pipeline of grids.
    from oakum_worker.parallel.grid_stages.arranging import StackedArranger
    from oakum_worker.parallel.grid_stages.engine import StackedEngine
    from oakum_worker.parallel.grid_stages.state import StackedState
    from oakum_worker.parallel.pipeline.arranging import layers_of

    task, spec = ingredients.task, ingredients.spec
    assert spec.parallel.tensor is not None
    if task.gathers:
        raise refused_gathering("parallel.pipeline", "leave it out, or use data: sharded")
    refuse_offloading(task)
    warn_of_batch_norm(task.model)
    chain, arranger = layers_of(task), StackedArranger(task, spec)
    state = StackedState(task, chain, arranger)
    engine = StackedEngine(task, chain, state, arranger, keep_gathered=spec.parallel.tensor.keep_gathered)
    return Assembly(engine, partial(keep_split_state, state=state, engine=engine), state)
