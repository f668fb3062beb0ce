"""Forms process groups of some of a generation's ranks, such as the holders of a pipeline's stage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.rendezvous.proofs import confirm_members
from oakum_worker.torch_internals import new_group

MESH_TIMEOUT = timedelta(seconds=20)
"""Time for ranks that have met at the store to connect to each other. If a peer dies during that time, nothing can
interrupt gloo's waiting for it, so the time is short."""


def wait_for_all_ranks(store: dist.Store, size: int, timeout: timedelta) -> None:
    """Wait until all `size` ranks of a group have come to its store.

    Ranks wait here for late ones, because `GenerationGroup.cut` can interrupt it. Raises `RuntimeError` when the
    store is gone.
    """
    if store.add("there", 1) == size:
        store.set("all there", "")
    store.wait(["all there"], timeout)


class Subgroups(Protocol):
    """Interface that forms process groups of some of a generation's ranks."""

    @property
    def timeout(self) -> timedelta:
        """Time that a message or collective of these groups may take."""

    @property
    def node_sizes(self) -> Sequence[int]:
        """How many of the generation's ranks each node has, in the order of ranks; empty where that is unknown."""

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Form a group of `ranks` of the generation, in this order; None where this rank is its only member.

        Collective among its members, which all have to form the groups that they share in the same order and under
        the same names. Raises `GroupError` when a member is gone.
        """


class NamedSubgroups:
    """`Subgroups` that forms groups under names that begin with a word, for sets of ranks that do the same side by
    side."""

    def __init__(self, subgroups: Subgroups, word: str) -> None:
        self._subgroups = subgroups
        self._word = word

    @property
    def timeout(self) -> timedelta:
        """Time that a message or collective of these groups may take."""
        return self._subgroups.timeout

    @property
    def node_sizes(self) -> Sequence[int]:
        """As `Subgroups.node_sizes`."""
        return self._subgroups.node_sizes

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """As `Subgroups.form`, under the name preceded by this object's word."""
        return self._subgroups.form(f"{self._word}-{name}", ranks)


class StoreSubgroups:
    """`Subgroups` whose members meet at a store that all ranks of the generation can reach.

    torch's `new_group` is not suitable: it sorts the ranks, and it names a group by the number of groups that a
    rank has formed, which may differ between ranks.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        timeout: timedelta,
        *,
        node_sizes: Sequence[int] = (),
        on_gpus: bool = False,
        secret: bytes = b"",
    ) -> None:
        """`rank` is this process's rank in the generation; with `on_gpus`, tensors on GPUs go through NCCL. The
        members of a group prove to each other that they know the `secret`, if it is not empty."""
        self._store = store
        self._rank = rank
        self.timeout = timeout
        self.node_sizes = node_sizes
        self._on_gpus, self._secret = on_gpus, secret
        self.formed: list[dist.ProcessGroup] = []
        """All groups so far, in the order in which they were formed."""

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Form a group of `ranks`, in this order, that meet in the store under `name`; None where this rank is its
        only member. Collective among its members. Raises `GroupError` when a member is gone."""
        if len(ranks) == 1:
            return None
        store = dist.PrefixStore(f"subgroup-{name}", self._store)
        try:
            group = self._meet(store, ranks.index(self._rank), len(ranks))
        except (OSError, RuntimeError) as error:
            raise GroupError(f"the group {name} of ranks {list(ranks)} could not be formed: {error}") from error
        if self._secret:
            confirm_members(group, ranks.index(self._rank), len(ranks), name, self._secret)
            self._wait_until_confirmed(store, len(ranks), name)
        self.formed.append(group)
        return group

    def _wait_until_confirmed(self, store: dist.Store, size: int, name: str) -> None:
        """Wait until all members know that there is no stranger among them: one who has met one does not come, and
        nobody uses the group."""
        try:
            wait_for_all_ranks(dist.PrefixStore("confirmed", store), size, min(MESH_TIMEOUT, self.timeout))
        except (OSError, RuntimeError) as error:
            raise GroupError(f"the group {name} was not confirmed by all of its members: {error}") from error

    def _meet(self, store: dist.Store, rank: int, size: int) -> dist.ProcessGroup:
        wait_for_all_ranks(store, size, self.timeout)
        return new_group(
            store,
            rank,
            size,
            connect_timeout=min(MESH_TIMEOUT, self.timeout),
            timeout=self.timeout,
            on_gpus=self._on_gpus,
        )
