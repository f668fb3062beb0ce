"""The strategy of trainers in rounds of MapReduce: each rank has the whole state and maps blocks of examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oakum_worker.errors import TaskError
from oakum_worker.strategy_record import Strategy

if TYPE_CHECKING:
    from oakum_worker.strategies.assembly import Assembly, Ingredients

STRATEGY = Strategy(
    "map-reduce",
    options=("parallel.data: map-reduce",),
    excludes=(
        "parallel.pipeline",
        "parallel.tensor",
        "parallel.all_reduce: torus",
        "parallel.batch_norm: synchronised",
        "parallel.batch_norm: group",
        "compile",
        "adaptive_batch",
        "micro_batch",
        "precision",
        "clip_grad_norm",
        "label_smoothing",
        "lars",
        "warm_up",
    ),
    complaint="{other} is for tasks with gradients: leave it out, or {option}",
    takes_gradients=False,
    saves_memory="cut the data set into smaller blocks",
)


def assemble(ingredients: Ingredients) -> Assembly:
    """Build a trainer in rounds. Raises `TaskError` for any other task. Returns its parts."""
    # Imported late: the record is read without torch, and other trainers do without the rest.
    from oakum_worker.map_reduce.rounds import RoundTask
    from oakum_worker.strategies.assembly import Assembly
    from oakum_worker.strategies.map_reduce.engine import MapReduceEngine
    from oakum_worker.strategies.replicated import keep_whole_state

    task = ingredients.task
    if not isinstance(task, RoundTask):
        raise TaskError(
            "parallel.data is map-reduce and the entrypoint returned a plain Task: return "
            "oakum_worker.map_reduce.rounds.map_reduce_task(...), or leave out parallel.data"
        )
    return Assembly(MapReduceEngine(task), keep_whole_state)
