"""The tensor-parallel strategy: the ranks of a grid each have a block of every matrix, and grids are replicas."""

from __future__ import annotations

from functools import partial

from oakum_worker.errors import TaskError
from oakum_worker.gathering import refused_gathering
from oakum_worker.parallel.normalisation import warn_of_batch_norm
from oakum_worker.parallel.offload import Offloaded
from oakum_worker.strategies.assembly import Assembly, Ingredients
from oakum_worker.strategies.sharded import keep_split_state
from oakum_worker.task import Task


def refuse_offloading(task: Task) -> None:
    """Raise `TaskError` where the task's optimizer takes whole parameters."""
    if isinstance(task.optimizer, Offloaded):
        name = type(task.optimizer).__name__
        raise TaskError(
            f"parallel.tensor is asked for and the task's optimizer is {name}, which takes whole parameters: use "
            f"torch.optim.{name.removeprefix('Offloaded')}, of whose state each rank then has blocks, or leave "
            "out parallel.tensor"
        )


def assemble(ingredients: Ingredients) -> Assembly:
    """Build a trainer on grids. Raises `TaskError` where the model, its loss or the optimizer cannot be divided.
    Returns its parts."""
    # Imported late, because other trainers do not need a grid.
    from oakum_worker.parallel.grids.arranging import GridArranger
    from oakum_worker.parallel.grids.engine import GridEngine
    from oakum_worker.parallel.grids.state import GridState

    task, spec = ingredients.task, ingredients.spec
    assert spec.parallel.tensor is not None
    if task.gathers:
        raise refused_gathering("parallel.tensor", "leave it out, or use data: sharded")
    refuse_offloading(task)
    warn_of_batch_norm(task.model)
    arranger = GridArranger(task, spec)
    state = GridState(task, arranger)
    engine = GridEngine(task, state, arranger, keep_gathered=spec.parallel.tensor.keep_gathered)
    return Assembly(engine, partial(keep_split_state, state=state, engine=engine), state)
