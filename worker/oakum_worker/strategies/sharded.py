"""The sharded strategy (FSDP2): each rank has some rows of each parameter, and its share of each batch."""

from __future__ import annotations

from oakum_worker.errors import TaskError
from oakum_worker.keeping.keeper import Keeper, KeeperContext
from oakum_worker.parallel.offload import Offloaded
from oakum_worker.parallel.split_state import SplitState
from oakum_worker.parallel.step_engine import SplitStateEngine
from oakum_worker.strategies.assembly import Assembly, Ingredients
from oakum_worker.task import Task


def keep_split_state(context: KeeperContext, state: SplitState, engine: SplitStateEngine) -> Keeper:
    """Make the keeper of a state of which each rank has a part. Returns the keeper."""
    from oakum_worker.keeping.split import SplitStateKeeper  # late: it takes a second to import

    return SplitStateKeeper(context.state, state, engine, context.spec, context.checkpoints, context.process)


def _refuse_offloading(task: Task) -> None:
    if isinstance(task.optimizer, Offloaded):
        name = type(task.optimizer).__name__
        raise TaskError(
            f"parallel.data is sharded and the task's optimizer is {name}, which takes whole parameters: use "
            f"torch.optim.{name.removeprefix('Offloaded')}, of whose state each rank then has its share, or leave "
            "out parallel.data"
        )


def assemble(ingredients: Ingredients) -> Assembly:
    """Build a sharded trainer. Raises `TaskError` where the optimizer takes whole parameters. Returns its
    parts."""
    # Imported late: sharded tensors import SymPy, which takes a second that other trainers do not need to spend.
    from oakum_worker.parallel.sharded import ShardedEngine, warm_up
    from oakum_worker.parallel.shards import Shards
    from oakum_worker.parallel.template import ModelTemplate

    task = ingredients.task
    _refuse_offloading(task)
    shards = Shards(task, ModelTemplate(task.model))
    engine = ShardedEngine(shards)

    def make_keeper(context: KeeperContext) -> Keeper:
        warm_up()
        return keep_split_state(context, shards, engine)

    return Assembly(engine, make_keeper, shards)
