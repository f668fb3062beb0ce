"""The strategy of trainers in rounds of MapReduce: each rank has the whole state and maps blocks of examples."""

from __future__ import annotations

from oakum_worker.errors import TaskError
from oakum_worker.strategies.assembly import Assembly, Ingredients
from oakum_worker.strategies.replicated import keep_whole_state


def assemble(ingredients: Ingredients) -> Assembly:
    """Build a trainer in rounds. Raises `TaskError` for any other task. Returns its parts."""
    # Imported late, because other trainers do without.
    from oakum_worker.map_reduce.rounds import RoundTask
    from oakum_worker.strategies.map_reduce.engine import MapReduceEngine

    task = ingredients.task
    if not isinstance(task, RoundTask):
        raise TaskError(
            "parallel.data is map-reduce and the entrypoint returned a plain Task: return "
            "oakum_worker.map_reduce.rounds.map_reduce_task(...), or leave out parallel.data"
        )
    return Assembly(MapReduceEngine(task), keep_whole_state)
