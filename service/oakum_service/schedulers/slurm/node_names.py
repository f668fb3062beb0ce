"""Unfolds the node lists of Slurm's state."""

from __future__ import annotations

from functools import lru_cache

from oakum_service.errors import SchedulerError
from oakum_solver.logs import node_lists


@lru_cache(maxsize=65536)
def unfold(nodes: str) -> tuple[str, ...]:
    """The nodes of a folded list. Raises `SchedulerError` if it cannot be read, or names more nodes than Slurm
    manages."""
    try:
        return node_lists.unfold(nodes)
    except ValueError as error:
        raise SchedulerError(str(error)) from error
