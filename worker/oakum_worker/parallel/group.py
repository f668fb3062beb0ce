"""Forms a generation's process group in the running processes, and breaks it when a member is lost.

Every rank process keeps a key-value store open from its start. The ranks of a generation meet at the store of its
rank 0, so no port has to be agreed on. gloo connects every pair of ranks while the group is formed. The store
answers members alone, and each pair proves to each other that it is one before anything else is sent
(`oakum_worker.rendezvous`).

When a rank dies, only its direct neighbours in the collective see an error. The other ranks would stay blocked
until the group's timeout, because their own neighbours' sockets are still open, and aborting a gloo group releases
no rank. Therefore `cut`, called in another thread, shuts down this process's connections of the group. The blocked
collective then raises at once, here and on the peers. A peer that merely hangs is left behind in the same way.

Of some messages gloo loses the error. Their waits end once gloo has closed all connections of a group that is cut
(`oakum_worker.parallel.waiting`), and another thread lets go of the group (`oakum_worker.parallel.broken_groups`).

Where the node has GPUs, collectives of tensors on them go through NCCL, whose groups can be aborted.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.parallel import nccl
from oakum_worker.parallel.broken_groups import let_go_of
from oakum_worker.parallel.group_sockets import deafen, is_connection, own_sockets, shut_down
from oakum_worker.parallel.stations import node_sizes
from oakum_worker.parallel.subgroups import MESH_TIMEOUT, StoreSubgroups, Subgroups, wait_for_all_ranks
from oakum_worker.parallel.waiting import COLLECTIVE_TIMEOUT, give_up_where
from oakum_worker.protocol import Endpoint, Generation
from oakum_worker.rendezvous.addresses import interface_of, listen_on
from oakum_worker.rendezvous.proofs import confirm_members
from oakum_worker.rendezvous.store_client import MembersStore, NotServedError
from oakum_worker.rendezvous.store_server import StoreServer
from oakum_worker.torch_internals import set_group_timeout

_HEARING_S, _RETRY_S = 30.0, 0.05
"""Time for rank 0 to answer and to have heard of the generation; and between two tries."""
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_CLOSING_S = 5.0
"""Time for gloo to close the connections of a group that is cut. It does not close one on which data has come for
an operation that has failed."""
_TRY = timedelta(seconds=1)
"""Time for one attempt to connect, which nothing can interrupt."""
_CONNECTING_S = 2.0
"""Ranks that have met connect to each other within so many seconds, unless one of them is gone. Nothing
interrupts gloo's waiting for a connection that has still to come, so whoever goes does so when all have come."""


class GenerationGroup:
    """Forms, leaves and cuts the process group of the generation that this process is in; it is in one generation
    at a time."""

    def __init__(self, host: str, towards: str | None = None) -> None:
        """`host` is the name or address by which the other nodes reach this one, and `towards` a host to which
        this node's way leads over the same network: the service's. Raises `OSError` where this process cannot
        listen."""
        listening = listen_on(host, towards)
        address = str(listening.getsockname()[0])
        # gloo would listen on whatever address the host's name leads to.
        if _GLOO_INTERFACE not in os.environ and (name := interface_of(address)) is not None:
            os.environ[_GLOO_INTERFACE] = name
        self._store = StoreServer(listening)
        # The address and not the name: others might take the name for another address.
        self.endpoint = Endpoint(host=address, port=self._store.port)
        self._client: MembersStore | None = None
        """The connection to the generation's store. torch's reference does not keep it alive."""
        self._lock = threading.Lock()
        self._number: int | None = None
        self._before: set[str] = set()
        self._sockets: set[str] | None = None
        self._store_sockets: set[str] = set()
        """Those of `_sockets` that lead to the generation's store. They stay open until the store is dropped."""
        self._refused = 0
        """Generations up to this number must not be formed any more."""
        self._cut_s = math.inf
        """When `cut` first broke the present generation's group, on the monotonic clock; infinite before."""
        self._connecting_s: float | None = None
        """Since when the ranks of the generation connect to each other, on the monotonic clock; None while they do
        not."""
        self._subgroups: StoreSubgroups | None = None
        self._aborts: dict[dist.ProcessGroup, threading.Thread] = {}
        """Threads that abort what NCCL does of the generation; each may wait for the device."""
        self._widening: set[str] | None = None
        """While a subgroup is being formed: the sockets that existed before. None at other times."""

    @property
    def is_cut(self) -> bool:
        """Whether `cut` has broken the present generation's group. Who computes has to ask: collectives of an
        NCCL group that was aborted raise nothing."""
        return self._cut_s < math.inf

    @property
    def is_to_be_left(self) -> bool:
        """Whether the present generation's group was cut and is still there."""
        return self.is_cut and self._number is not None

    @property
    def is_aborting(self) -> bool:
        """Whether NCCL has not yet ended what it did of the generation that was cut."""
        return any(thread.is_alive() for thread in self._aborts.values())

    def form(self, generation: Generation, rank: int) -> dist.ProcessGroup | None:
        """Form the generation's group: wait for the other ranks and connect to each. None when this rank is
        alone. Returns the group.

        Raises `GroupError` when a peer is gone or the generation is cut meanwhile.
        """
        size, secret = generation.world_size, _secret_of(generation)
        if size == 1:
            return None
        self.expect(generation)
        with self._lock:
            self._number, self._before, self._sockets = generation.number, set(own_sockets()), None
            self._cut_s = math.inf
        try:
            self._client = self._connect(generation)
            store = dist.PrefixStore(f"generation-{generation.number}", self._client)
            self._store_sockets = set(own_sockets()) - self._before
            wait_for_all_ranks(store, size, COLLECTIVE_TIMEOUT)
            with self._connecting():
                dist.init_process_group(
                    nccl.backend(),
                    store=store,
                    rank=rank,
                    world_size=size,
                    timeout=MESH_TIMEOUT,
                )
            set_group_timeout(COLLECTIVE_TIMEOUT)
            if secret:
                confirm_members(_world(), rank, size, "of all ranks", secret)
            # A rank that has met a stranger does not come here: then nobody uses the group.
            wait_for_all_ranks(dist.PrefixStore("confirmed", store), size, MESH_TIMEOUT)
        except GroupError:
            self.leave()
            raise
        except (OSError, RuntimeError, ValueError) as error:
            self.leave()
            _forget_failed_attempt()
            raise GroupError(f"generation {generation.number} could not be formed: {error}") from error
        with self._lock:
            was_cut = self.is_cut
            self._sockets = set(own_sockets()) - self._before
            _deafen(self._sockets)
            self._subgroups = StoreSubgroups(
                store,
                rank,
                COLLECTIVE_TIMEOUT,
                node_sizes=node_sizes(generation.stations),
                on_gpus=nccl.is_in_use(),
                secret=secret,
            )
        give_up_where(partial(self._is_disconnected, generation.number), lambda: self.is_cut)
        if was_cut:  # and has connected after that
            self.leave()
            raise GroupError(f"generation {generation.number} was ended by the service while it was formed")
        return dist.group.WORLD

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[None]:
        """Context in which the ranks of the generation connect to each other. Raises `ConnectionAbortedError` at
        its beginning or its end if the generation was cut by then."""
        with self._lock:
            self._refuse_if_cut()
            self._connecting_s = time.monotonic()
        try:
            yield
        finally:
            self._connecting_s = None
        with self._lock:
            self._refuse_if_cut()

    def _refuse_if_cut(self) -> None:
        if self.is_cut:
            raise ConnectionAbortedError("it is over already")

    def let_peers_connect(self) -> None:
        """Wait while the ranks of the generation connect to each other, at most `_CONNECTING_S`. To be called
        before this process ends, from another thread than the one that forms the group."""
        while self._is_connecting():
            time.sleep(_RETRY_S)

    def _is_connecting(self) -> bool:
        since_s = self._connecting_s
        return since_s is not None and time.monotonic() < since_s + _CONNECTING_S

    def expect(self, generation: Generation) -> None:
        """Let the members of a generation meet here, if this process is its rank 0. To be called as soon as it is
        known, from any thread."""
        if generation.world_size < 2:
            return
        first = _rank_0(generation)
        if (first.host, first.port) == (self.endpoint.host, self.endpoint.port):
            self._store.open(generation.number, _secret_of(generation))

    @property
    def subgroups(self) -> Subgroups:
        """A `Subgroups` that forms groups of some of the present generation's ranks. `leave` and `cut` also leave
        and cut these groups."""
        return _OwnSubgroups(self)

    @property
    def node_sizes(self) -> Sequence[int]:
        """How many ranks each node of the present generation has, in the order of ranks; empty without a group."""
        return () if self._subgroups is None else self._subgroups.node_sizes

    def form_subgroup(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Form a group of `ranks` of the present generation; None where this rank is its only member. Collective
        among its members. Raises `GroupError` when a member is gone or the generation is over."""
        with self._lock:
            subgroups = self._subgroups
            if subgroups is None or self.is_cut:
                raise GroupError(f"the group {name} could not be formed: the generation is over")
            self._widening = set(own_sockets())
        try:
            group = subgroups.form(name, ranks)
        finally:
            with self._lock:
                if self._sockets is not None and self._widening is not None:
                    self._sockets |= (new := set(own_sockets()) - self._widening)
                    _deafen(new)
                self._widening = None
        if (number := self._number_cut()) is not None:  # and this has connected after that
            self.cut(number)
            raise GroupError(f"the group {name} was formed while the service ended the generation")
        return group

    def _number_cut(self) -> int | None:
        """Number of the present generation if it was cut, else None."""
        return self._number if self.is_cut else None

    def _connect(self, generation: Generation) -> MembersStore:
        """Connect to the key-value store of the generation's rank 0, trying again while it does not answer or has
        not heard of the generation. Raises `OSError` when nothing listens there, the generation is over, or no try
        succeeds in time. Returns the store."""
        began_s = time.monotonic()
        while True:
            client: MembersStore | None = None
            waited_s = time.monotonic() - began_s
            try:
                client = _try_to_connect(generation)
            except NotServedError:
                if waited_s >= _HEARING_S:
                    raise
                time.sleep(_RETRY_S)
            except TimeoutError:  # a busy rank 0, or one whose machine has gone
                if waited_s >= _HEARING_S:
                    raise
            if generation.number <= self._refused:  # refused before there was a connection to cut
                raise ConnectionAbortedError("it is over already")
            if client is not None:
                return client

    def leave(self) -> None:
        """Release the generation's group, whether it is broken or not. Does nothing without a group. Waits until
        NCCL's collectives have been aborted if it is: nothing else ends those of a lost peer, and whoever waits
        for the device waits for them."""
        with self._lock:
            self._abort(self._broken_groups())
            aborts = list(self._aborts.values())
        for thread in aborts:
            thread.join()
        with self._lock:
            self._aborts = {}
            groups = self._broken_groups()
            self._number, self._sockets, self._subgroups, client = None, None, None, self._client
            self._client = None
            if dist.is_initialized():
                # A broken group may raise because of its broken connections; it is released in any case.
                with contextlib.suppress(RuntimeError):
                    dist.destroy_process_group()
            if client is not None:
                client.close()
        if groups:
            let_go_of(groups)

    def _broken_groups(self) -> list[dist.ProcessGroup]:
        """The generation's groups, if releasing one of them may never end: where the generation was cut or one of
        its connections is closed. Empty else."""
        if self._sockets is None or dist.group.WORLD is None:
            return []
        if not self.is_cut and self._sockets <= own_sockets().keys():
            return []
        return [dist.group.WORLD, *(self._subgroups.formed if self._subgroups is not None else ())]

    def cut(self, up_to: int) -> int | None:
        """Break the group of the present generation if its number is at most `up_to`; return the number if so.

        Called from another thread. A collective or rendezvous in progress then raises in the training thread.
        While the ranks connect to each other they are left to do so, for at most `_CONNECTING_S`.
        """
        with self._lock:
            self._refused = max(self._refused, up_to)
            if self._number is None or self._number > up_to:
                return None
            self._cut_s = min(self._cut_s, time.monotonic())
            if self._is_connecting():
                again = threading.Timer(_CONNECTING_S, self.cut, (up_to,))
                again.daemon = True
                again.start()
                return self._number
            for name, descriptor in own_sockets().items():
                if self._is_of_group(name):
                    shut_down(descriptor, own_port=self.endpoint.port)
            world = dist.group.WORLD if self._sockets is not None else None
            formed = self._subgroups.formed if self._subgroups is not None else []
            self._abort([*([] if world is None else [world]), *formed])
            return self._number

    def _abort(self, groups: Sequence[dist.ProcessGroup]) -> None:
        """Begin to abort NCCL's collectives of these groups, where that has not begun. The caller has the lock."""
        if nccl.is_in_use():
            new = [group for group in groups if group not in self._aborts]
            self._aborts |= zip(new, nccl.abort(new), strict=True)

    def _is_disconnected(self, number: int) -> bool:
        """Whether generation `number` was cut and gloo has closed all its connections, or has had `_CLOSING_S` to
        do so: no message of it can arrive any more."""
        with self._lock:
            if number > self._refused:
                return False
            if number != self._number or time.monotonic() >= self._cut_s + _CLOSING_S:
                return True
            of_group = (self._sockets or set()) - self._store_sockets
            still_open = (descriptor for name, descriptor in own_sockets().items() if name in of_group)
            return not any(is_connection(descriptor, self.endpoint.port) for descriptor in still_open)

    def _is_of_group(self, socket_name: str) -> bool:
        if self._sockets is None:
            return socket_name not in self._before
        widened = self._widening is not None and socket_name not in self._widening
        return widened or socket_name in self._sockets

    def cut_forming(self, below: int) -> None:
        """Called from another thread: interrupt the forming of a group if its generation's number is below
        `below`; a group that has formed is left alone. Later attempts to form such an old generation fail, too."""
        with self._lock:
            self._refused = max(self._refused, below - 1)
            forming = self._number is not None and self._sockets is None
        if forming:
            self.cut(below - 1)


class _OwnSubgroups:
    """The `Subgroups` of a `GenerationGroup`: forms each group by `GenerationGroup.form_subgroup`."""

    timeout = COLLECTIVE_TIMEOUT

    def __init__(self, group: GenerationGroup) -> None:
        self._group = group

    @property
    def node_sizes(self) -> Sequence[int]:
        return self._group.node_sizes

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        return self._group.form_subgroup(name, ranks)


def _deafen(names: set[str]) -> None:
    """Let gloo hear no stranger on the sockets `names`; NCCL connects when it is first used, and is left alone."""
    if not nccl.is_in_use():
        deafen(names)


def _forget_failed_attempt() -> None:
    """Reset torch's count of this process's groups to zero.

    The count is part of the names under which ranks find each other in the store. A failed attempt raises it in
    this process alone, which would then wait for its peers for ever under another name. Destroying a formed group
    resets the count, so this function forms and destroys a group of this rank alone.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


def _try_to_connect(generation: Generation) -> MembersStore:
    """Connect to rank 0's store. Raises `OSError` at once when nothing listens there, because rank 0 is gone.
    Returns the store."""
    store = MembersStore(_rank_0(generation), generation.number, _secret_of(generation), _TRY)
    # From here on a peer may be late by as much as one of its steps takes.
    store.set_timeout(COLLECTIVE_TIMEOUT)
    return store


def _rank_0(generation: Generation) -> Endpoint:
    return generation.members[0].ranks[0]


def _secret_of(generation: Generation) -> bytes:
    """Empty where the service is of a version that gives none."""
    return bytes.fromhex(generation.secret or "")


def _world() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD
