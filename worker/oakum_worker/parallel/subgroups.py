"""Process groups of some of a generation's ranks: a stage's holders, the workers of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from oakum_worker.errors import GroupError


class Subgroups(Protocol):
    """Forms them, within one generation."""

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """The group of these ranks of the generation, in this order; None where this rank is alone in it.

        Collective among them alone: each member asks for the same names in the same order. Raises `GroupError`
        when one is gone.
        """


class StoreSubgroups:
    """`Subgroups` over gloo, which meet at a store that all ranks of the generation have."""

    def __init__(self, store: dist.Store, rank: int, timeout: timedelta) -> None:
        """`rank` is this process's in the generation."""
        self._store = store
        self._rank = rank
        self._timeout = timeout

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """See `Subgroups`."""
        if len(ranks) == 1:
            return None
        store = dist.PrefixStore(f"subgroup-{name}", self._store)
        try:
            group: Any = dist.ProcessGroupGloo(store, ranks.index(self._rank), len(ranks), self._timeout)
        except RuntimeError as error:
            raise GroupError(f"the group {name} of ranks {list(ranks)} could not be formed: {error}") from error
        return group
