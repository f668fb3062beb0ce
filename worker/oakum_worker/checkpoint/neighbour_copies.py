"""Copies of a sharded trainer's state in memory: each rank keeps one of its own part and one of a neighbour's.

A copy is taken at a step boundary, which costs the time to copy this rank's rows once, and is sent to the
neighbour while training goes on. A copy counts when every rank has both parts; until then the previous copy is
kept. Each rank therefore needs memory for up to four parts beside the live one, and for two parts between copies.

A second thread sends rows point to point on the generation's own group. This is safe on gloo, where messages
between two ranks have a tag of their own and no place in the order of collectives. Rows are sent in pieces,
because a collective that the training thread starts meanwhile waits for what was handed to the connection before
it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from oakum_worker.parallel.holdings import Part, Place, Rows, SplitTensor, block_of, by_part
from oakum_worker.parallel.split_state import LocalState, RankSnapshot
from oakum_worker.parallel.waiting import wait_for_messages

_PIECE_BYTES = 1 << 20
_ALIGNMENT = 64
_TAG, _POKE_TAG = 1, 2


@dataclass(frozen=True)
class Ring:
    """Which rank keeps the copy of this rank's part, and which rank's part (the *ward's*) this rank keeps."""

    group: dist.ProcessGroup
    place: Place
    distance: int
    """By how much the number of a rank's neighbour is higher; it goes on at 0 (`stations.copy_distance`)."""

    @property
    def keeper(self) -> int:
        """The rank that keeps a copy of this rank's part."""
        return (self.place.rank + self.distance) % self.place.world_size

    @property
    def ward(self) -> int:
        """The rank whose parts this rank keeps a copy of."""
        return (self.place.rank - self.distance) % self.place.world_size

    @property
    def ward_parts(self) -> tuple[Part, ...]:
        """The parts of the state that the ward holds."""
        return self.place.holdings.by_rank[self.ward]


class _Memory:
    """A block of memory for copies of one rank's tensors, reused from one copy to the next."""

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def lay_out(self, tensors: Sequence[SplitTensor], parts: Sequence[Part]) -> dict[str, torch.Tensor]:
        """Path of a tensor -> memory for the block of it that belongs to `parts`. Overwrites what was laid out
        before."""
        places, end = [], 0
        for tensor in tensors:
            start = end + -end % _ALIGNMENT
            block = block_of(parts, tensor)
            end = start + block.num_elements * tensor.dtype.itemsize
            places.append((tensor, block, start, end))
        if self.bytes.numel() != end:
            self.bytes = torch.empty(end, dtype=torch.uint8)
        return {
            tensor.path: self.bytes[start:stop].view(tensor.dtype).view(block.shape)
            if block
            else tensor.empty(block)
            for tensor, block, start, stop in places
        }


class _CopyPair:
    """This rank's and its ward's copy of one step's state, while they travel and afterwards."""

    def __init__(self) -> None:
        self._own, self._ward = _Memory(), _Memory()
        self._thread: threading.Thread | None = None
        self.snapshot: RankSnapshot | None = None
        self.arrived = False

    def take(self, state: LocalState, step: int, generation: int, ring: Ring) -> None:
        """Copy this rank's rows of `state`, and begin to exchange copies along `ring` in a thread: this rank's
        rows are sent to its keeper, its ward's are received. Returns before the exchange has ended."""
        parts = ring.place.parts
        self.arrived = False
        copies = self._own.lay_out(state.tensors, parts)
        for path, copy in copies.items():
            copy.copy_(state.rows[path])
        whole = {path: tensor.to("cpu", copy=True) for path, tensor in state.whole.items()}
        self.snapshot = RankSnapshot(
            step, generation, state.document, whole, by_part(parts, state.tensors, copies)
        )
        received = self._ward.lay_out(state.tensors, ring.ward_parts)
        wards = by_part(ring.ward_parts, state.tensors, received)
        self._thread = threading.Thread(
            target=self._travel, args=(ring, wards), daemon=True, name="neighbour copy"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until this rank neither sends nor receives anything of the copy any more, whether it has arrived or
        failed."""
        if self._thread is not None:
            self._thread.join()

    def give_up(self, ring: Ring) -> None:
        """Stop exchanging over a group that is broken, whose peers may never answer, and wait until the thread has
        ended."""
        if self._thread is not None and self._thread.is_alive():
            # A wait on gloo that times out closes all of the group's connections, which frees the other thread.
            with contextlib.suppress(RuntimeError):
                ring.group.recv([torch.empty(1)], ring.ward, _POKE_TAG).wait(timedelta(milliseconds=1))
            self._thread.join()

    def _travel(self, ring: Ring, received: Mapping[Part, Rows]) -> None:
        assert self.snapshot is not None
        ours, theirs = self._own.bytes, self._ward.bytes
        try:
            for start in range(0, max(ours.numel(), theirs.numel()), _PIECE_BYTES):
                piece = slice(start, start + _PIECE_BYTES)
                works = []
                # The group's own methods also work on a group that is being dropped.
                if start < theirs.numel():
                    works.append((ring.group.recv([theirs[piece]], ring.ward, _TAG), theirs))
                if start < ours.numel():
                    works.append((ring.group.send([ours[piece]], ring.keeper, _TAG), ours))
                wait_for_messages(works)
        except RuntimeError:
            # The generation is broken, which the training thread finds out by itself.
            return
        self.snapshot.parts.update(received)
        self.arrived = True


class NeighbourCopies:
    """Takes copies of this rank's part of the state and exchanges them with its neighbours. Keeps the newest copy
    that every rank has in full, and the one that is being exchanged."""

    def __init__(self) -> None:
        self._ring: Ring | None = None
        self._kept: list[_CopyPair] = []
        self._travelling: _CopyPair | None = None
        self._spare = _CopyPair()

    def enter(self, ring: Ring | None) -> None:
        """Make copies along this ring from now on; None for a rank alone, which makes no copies.

        Copies of earlier generations are kept until the first copy along this ring is complete. With None they
        are dropped at once.
        """
        if self._travelling is not None:
            self._kept.append(self._travelling)
        if ring is None:
            self._kept.clear()
        self._ring, self._travelling = ring, None

    @property
    def idle(self) -> bool:
        """Whether a copy may be started. The same on every rank, as long as all `confirm` at the same steps."""
        return self._ring is not None and self._travelling is None

    @property
    def arrived(self) -> bool:
        """Whether this rank has its own and its ward's part of the copy that is being exchanged."""
        return self._travelling is not None and self._travelling.arrived

    def start(self, state: LocalState, step: int, generation: int) -> None:
        """Copy this rank's rows now and exchange them with the neighbours in the background. Every rank has to
        call this at the same step, while `idle`."""
        assert self._ring is not None
        assert self._travelling is None
        self._travelling, self._spare = self._spare, _CopyPair()
        self._travelling.take(state, step, generation, self._ring)

    def confirm(self) -> None:
        """To be called when every rank has its parts of the copy that was exchanged: the copy replaces all older
        ones. Every rank has to call this at the same step."""
        assert self._travelling is not None
        if self._kept:
            self._spare = self._kept[-1]
            self._spare.snapshot = None
        self._kept, self._travelling = [self._travelling], None

    def snapshots(self) -> list[RankSnapshot]:
        """The copies that training can go back to.

        Parts of an incomplete copy count, as other ranks may have the rest.
        """
        copies = self._kept if self._travelling is None else [*self._kept, self._travelling]
        return [copy.snapshot for copy in copies if copy.snapshot is not None]

    def settle(self) -> None:
        """Wait until no copy is on its way to or from this rank. The group must not be broken."""
        if self._travelling is not None:
            self._travelling.wait()

    def abandon(self) -> None:
        """Stop the exchange in progress, if any, over a group that may be broken, and forget the group."""
        if self._travelling is not None and self._ring is not None:
            self._travelling.give_up(self._ring)
