"""Process groups of some of a generation's ranks: a stage's holders, the workers of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError

MESH_TIMEOUT = timedelta(seconds=20)
"""For ranks that are all there to connect to each other. While gloo waits for a peer that has died meanwhile to
connect, nothing can break that off."""


def meet(store: dist.Store, size: int, timeout: timedelta) -> None:
    """Wait until all ranks of a group are at its store, however late one comes: waiting here can be cut.

    Raises `RuntimeError` when the store is gone.
    """
    if store.add("there", 1) == size:
        store.set("all there", "")
    store.wait(["all there"], timeout)


class Subgroups(Protocol):
    """Forms them, within one generation."""

    @property
    def timeout(self) -> timedelta:
        """For what their ranks send each other."""

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """The group of these ranks of the generation, in this order; None where this rank is alone in it.

        Collective among them alone: each member asks for the same names in the same order. Raises `GroupError`
        when one is gone.
        """


class StoreSubgroups:
    """`Subgroups` which meet at a store that all ranks of the generation have.

    torch's `new_group` is not for this: it sorts the ranks, and finds a group's name by counting those that a rank
    has formed before, of which two ranks may have different numbers.
    """

    def __init__(self, store: dist.Store, rank: int, timeout: timedelta, *, on_gpus: bool = False) -> None:
        """`rank` is this process's in the generation. `on_gpus`, tensors there go through NCCL."""
        self._store = store
        self._rank = rank
        self.timeout = timeout
        self._on_gpus = on_gpus
        self._formed: list[dist.ProcessGroup] = []

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """See `Subgroups`."""
        if len(ranks) == 1:
            return None
        store = dist.PrefixStore(f"subgroup-{name}", self._store)
        try:
            group = self._meet(store, ranks.index(self._rank), len(ranks))
        except RuntimeError as error:
            raise GroupError(f"the group {name} of ranks {list(ranks)} could not be formed: {error}") from error
        self._formed.append(group)
        return group

    def abort(self) -> None:
        """Let go of what NCCL has in flight in any of the groups; for gloo's see `GenerationGroup.cut`."""
        if self._on_gpus:
            for group in self._formed:
                group.abort()

    def _meet(self, store: dist.Store, rank: int, size: int) -> dist.ProcessGroup:
        kinds = dist.ProcessGroup.BackendType
        meet(store, size, self.timeout)
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, min(MESH_TIMEOUT, self.timeout))
        gloo._set_default_timeout(self.timeout)
        group = dist.ProcessGroup(store, rank, size)
        group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
        if self._on_gpus:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self.timeout
            nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
            group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
        return group
