"""Tells the user what to change in a trainer that ran out of memory. Imports no torch."""

from __future__ import annotations

from oakum_worker.spec import TrainerSpec
from oakum_worker.strategy_table import strategy_of


def memory_advice(spec: TrainerSpec) -> str:
    """One sentence on how a user can change the spec so that the trainer needs less memory on each node."""
    ways, strategy = [], strategy_of(spec)
    if strategy.takes_gradients:
        if spec.micro_batch is None or spec.micro_batch > 1:
            now = "not set" if spec.micro_batch is None else f"now {spec.micro_batch}"
            ways.append(f"lower micro_batch ({now}; `oakum profile micro-batch` finds what fits)")
        ways.append("compute activations again (torch.utils.checkpoint, or recompute of a pipeline)")
    if strategy.saves_memory:
        ways.append(strategy.saves_memory)
    if spec.ranks_per_node > 1:
        ways.append(f"lower ranks_per_node (now {spec.ranks_per_node})")
    ways.append("have fewer data workers, or smaller caches")
    return f"To need less memory: {', '.join(ways)}"
