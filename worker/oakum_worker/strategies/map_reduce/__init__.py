"""The strategy of trainers in rounds of MapReduce: each rank has the whole state and maps blocks of examples."""

from __future__ import annotations

from oakum_worker.errors import TaskError
from oakum_worker.strategies.replicated import keep_whole_state
from oakum_worker.strategies.strategy import Assembly, Ingredients, Strategy


def _assemble(ingredients: Ingredients) -> Assembly:
    # Imported late, because other trainers do without.
    from oakum_worker.map_reduce.rounds import RoundTask
    from oakum_worker.parallel.map_reduce import MapReduceEngine

    task = ingredients.task
    if not isinstance(task, RoundTask):
        raise TaskError(
            "parallel.data is map-reduce and the entrypoint returned a plain Task: return "
            "oakum_worker.map_reduce.rounds.map_reduce_task(...), or leave out parallel.data"
        )
    return Assembly(MapReduceEngine(task), keep_whole_state)


MAP_REDUCE = Strategy(
    "map-reduce",
    serves=lambda spec: spec.parallel.data == "map-reduce",
    assemble=_assemble,
    takes_gradients=False,
)
