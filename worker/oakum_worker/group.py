"""A generation's process group: formed in place, and cut from outside when a member is lost.

Every rank process keeps a key-value store open from its start; a generation meets at the store of its rank 0,
so a rendezvous needs no port to be agreed on. gloo connects every pair of ranks while the group is formed.

When a rank dies, only its direct neighbours in the collective see an error: the others stay blocked until the
group's timeout, because their own neighbours' sockets are still open, and aborting a gloo group releases
nobody. `cut` therefore shuts down this process's connections of the group, from another thread; the blocked
collective raises at once, and so do the peers' (also a peer that hangs stops mattering).

Where the node has GPUs, collectives of tensors on them go through NCCL, whose groups can be aborted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from oakum_worker.errors import GroupError
from oakum_worker.parallel.subgroups import MESH_TIMEOUT, StoreSubgroups, Subgroups, meet
from oakum_worker.parallel.waiting import COLLECTIVE_TIMEOUT
from oakum_worker.protocol import Endpoint, Generation

_CONNECT_TIMEOUT_S = 10.0
_TRY_S = 1.0
"""For one try of torch's own to connect, during which nothing can break it off."""


class GenerationGroup:
    """This process's membership in one generation at a time."""

    def __init__(self, host: str) -> None:
        self._store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        self.endpoint = Endpoint(host=host, port=self._store.port)
        self._lock = threading.Lock()
        self._number: int | None = None
        self._before: set[str] = set()
        self._sockets: set[str] | None = None
        self.is_cut = False
        """Whether the present generation's group was broken by `cut`. An aborted NCCL group raises nothing."""
        self._refused = 0
        """Generations up to this one are not to be formed any more."""
        self._subgroups: StoreSubgroups | None = None
        self._widening: set[str] | None = None
        """The sockets that there were before a subgroup's were opened, while that goes on."""

    def form(self, generation: Generation, rank: int) -> dist.ProcessGroup | None:
        """Meet the generation's other ranks and connect to each; None when this rank is alone.

        Raises `GroupError` when a peer is gone or the generation is cut meanwhile.
        """
        size = generation.world_size
        if size == 1:
            return None
        with self._lock:
            self._number, self._before, self._sockets = generation.number, set(_sockets()), None
            self.is_cut = False
        try:
            store = dist.PrefixStore(f"generation-{generation.number}", self._connect(generation))
            meet(store, size, COLLECTIVE_TIMEOUT)
            dist.init_process_group(
                _backend(),
                store=store,
                rank=rank,
                world_size=size,
                timeout=MESH_TIMEOUT,
            )
            _set_pg_timeout(COLLECTIVE_TIMEOUT)
        except (OSError, RuntimeError, ValueError) as error:
            self.leave()
            _forget_failed_attempt()
            raise GroupError(f"generation {generation.number} could not be formed: {error}") from error
        with self._lock:
            was_cut = self.is_cut
            self._sockets = set(_sockets()) - self._before
            self._subgroups = StoreSubgroups(store, rank, COLLECTIVE_TIMEOUT, on_gpus=_backend() != "gloo")
        if was_cut:  # and has connected after that
            self.leave()
            raise GroupError(f"generation {generation.number} was declared over while it was formed")
        return dist.group.WORLD

    @property
    def subgroups(self) -> Subgroups:
        """Forms groups of some of the present generation's ranks, which go with it."""
        return _Within(self)

    def form_subgroup(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """See `Subgroups.form`."""
        with self._lock:
            subgroups = self._subgroups
            if subgroups is None or self.is_cut:
                raise GroupError(f"the group {name} could not be formed: the generation is over")
            self._widening = set(_sockets())
        try:
            group = subgroups.form(name, ranks)
        finally:
            with self._lock:
                if self._sockets is not None and self._widening is not None:
                    self._sockets |= set(_sockets()) - self._widening
                self._widening = None
        if (number := self._number_cut()) is not None:  # and this has connected after that
            self.cut(number)
            raise GroupError(f"the group {name} was formed as the generation was declared over")
        return group

    def _number_cut(self) -> int | None:
        """Of the present generation, if it was cut."""
        return self._number if self.is_cut else None

    def _connect(self, generation: Generation) -> dist.TCPStore:
        """A client of rank 0's store. Raises `OSError` when nobody listens there, or the generation is over."""
        deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
        while True:
            try:
                client = _try_to_connect(generation.members[0].ranks[0])
            except dist.DistNetworkError:
                client = None
                if time.monotonic() >= deadline_s:
                    raise
            if generation.number <= self._refused:  # refused before there was a connection to cut
                raise ConnectionAbortedError("it is over already")
            if client is not None:
                return client

    def leave(self) -> None:
        """Drop the generation's group, broken or not."""
        with self._lock:
            self._number, self._sockets, self._subgroups = None, None, None
            if dist.is_initialized():
                # A broken group may complain about its broken connections: it is gone either way.
                with contextlib.suppress(RuntimeError):
                    dist.destroy_process_group()

    def cut(self, up_to: int) -> int | None:
        """Break the group if it belongs to a generation up to `up_to`; returns the number of the one broken.

        Called from another thread. Whatever collective or rendezvous is in flight raises in the training thread.
        """
        with self._lock:
            self._refused = max(self._refused, up_to)
            if self._number is None or self._number > up_to:
                return None
            self.is_cut = True
            for name, descriptor in _sockets().items():
                if self._is_of_group(name):
                    _shut_down(descriptor, own_port=self.endpoint.port)
            world = dist.group.WORLD if self._sockets is not None else None
            if world is not None and _backend() != "gloo":
                world.abort()
                if self._subgroups is not None:
                    self._subgroups.abort()
            return self._number

    def _is_of_group(self, socket_name: str) -> bool:
        if self._sockets is None:
            return socket_name not in self._before
        widened = self._widening is not None and socket_name not in self._widening
        return widened or socket_name in self._sockets

    def cut_forming(self, below: int) -> None:
        """Break off the rendezvous of a generation older than `below`; a group that stands is left alone."""
        with self._lock:
            self._refused = max(self._refused, below - 1)
            forming = self._number is not None and self._sockets is None
        if forming:
            self.cut(below - 1)


class _Within:
    """`Subgroups` of a `GenerationGroup`."""

    timeout = COLLECTIVE_TIMEOUT

    def __init__(self, group: GenerationGroup) -> None:
        self._group = group

    def form(self, name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        return self._group.form_subgroup(name, ranks)


def _backend() -> str:
    """gloo for tensors on the CPU, and NCCL for those on GPUs where there are any."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def _forget_failed_attempt() -> None:
    """Bring torch's count of this process's groups back to zero.

    The count is part of the names under which ranks look for each other in the store. A failed attempt leaves it
    raised in this process alone, which would then wait for its peers under another name, for ever; destroying a
    group that stands, here one of this rank alone, resets it.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


def _try_to_connect(rendezvous: Endpoint) -> dist.TCPStore:
    """A client of rank 0's store. Raises `OSError` at once when nobody listens there: rank 0 is gone.

    torch's own client would go on trying until its timeout, with no connection yet that could be cut: it gets a
    short one, since rank 0 may also go between the two lines.
    """
    socket.create_connection((rendezvous.host, rendezvous.port), timeout=_CONNECT_TIMEOUT_S).close()
    client = dist.TCPStore(
        rendezvous.host,
        rendezvous.port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=_TRY_S),
    )
    # From here on a peer may be late for as long as its step takes.
    client.set_timeout(COLLECTIVE_TIMEOUT)
    return client


def _sockets() -> dict[str, int]:
    """This process's sockets: the kernel's name of each, and its descriptor.

    A broken group keeps sockets open for a while, and the next group's get the descriptors that it gives back
    meanwhile: descriptors do not tell whose a socket is.
    """
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[name] = int(entry.name)
    return found


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket object over a duplicate of the descriptor, so that closing it leaves the owner's open."""
    handle = socket.socket(fileno=os.dup(descriptor))
    try:
        yield handle
    finally:
        handle.close()


def _shut_down(descriptor: int, own_port: int) -> None:
    """Shut a connected socket down. gloo terminates the process if one of its listening sockets is.

    Connections to this process's own store are spared: peers may already meet there for the next generation.
    """
    with contextlib.suppress(OSError), _borrowed(descriptor) as handle:
        if handle.family not in (socket.AF_INET, socket.AF_INET6):
            return
        if handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return
        if handle.getsockname()[1] == own_port:
            return
        handle.getpeername()
        handle.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def lost_peers(when: str) -> Iterator[None]:
    """Raise `GroupError` where a collective fails that others' code has started: FSDP2's or an optimizer's."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise GroupError(f"a rank was lost {when}: {error}") from error
        raise
