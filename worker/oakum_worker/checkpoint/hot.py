"""Copies of a sharded trainer's state in memory: each rank keeps one of its own part and one of a neighbour's.

A copy is taken at a step boundary, which costs the time to copy this rank's rows once, and travels to the
neighbour while training goes on. It counts when every rank has both; until then the one before stays. So memory
for up to four parts is needed on each rank beside the live one, and for two between copies.

Rows travel point to point on the generation's own group, from a second thread. That is safe on gloo: messages
between two ranks have a tag of their own and no place in the order of collectives. They go in pieces, since a
collective that the training thread starts meanwhile queues behind whatever has been handed to the same connection.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from oakum_worker.parallel.layout import Part, Place, Rows, SplitTensor, by_part, rows_of
from oakum_worker.parallel.shards import LocalState, Snapshot
from oakum_worker.parallel.waiting import wait_for_message

_PIECE_BYTES = 1 << 20
_ALIGNMENT = 64
_TAG, _POKE_TAG = 1, 2


@dataclass(frozen=True)
class Ring:
    """Whom a rank of a generation copies to, and whose copy it keeps."""

    group: dist.ProcessGroup
    place: Place
    distance: int
    """To the neighbour: the ranks of a node, if it has several, so that no node holds both copies."""

    @property
    def keeper(self) -> int:
        """The rank that keeps a copy of what this one holds."""
        return (self.place.rank + self.distance) % self.place.world_size

    @property
    def ward(self) -> int:
        """The rank of whose parts this one keeps a copy."""
        return (self.place.rank - self.distance) % self.place.world_size

    @property
    def ward_parts(self) -> tuple[Part, ...]:
        """What that rank holds."""
        return self.place.holdings.by_rank[self.ward]


class _Memory:
    """One block that holds one rank's rows, and is reused for the next copy."""

    def __init__(self) -> None:
        self.block = torch.empty(0, dtype=torch.uint8)

    def lay_out(self, tensors: Sequence[SplitTensor], parts: Sequence[Part]) -> dict[str, torch.Tensor]:
        """Views of the block, one for each tensor's rows of the parts."""
        places, end = [], 0
        for tensor in tensors:
            start = end + -end % _ALIGNMENT
            end = start + len(rows_of(parts, tensor)) * tensor.row_bytes
            places.append((start, end))
        if self.block.numel() != end:
            self.block = torch.empty(end, dtype=torch.uint8)
        return {
            tensor.path: self.block[start:stop].view(tensor.dtype).view(-1, *tensor.shape[1:])
            if stop > start
            else tensor.empty(range(0))
            for tensor, (start, stop) in zip(tensors, places, strict=True)
        }


class _Copy:
    """A copy of one step's state, on its way or arrived."""

    def __init__(self) -> None:
        self._own, self._ward = _Memory(), _Memory()
        self._thread: threading.Thread | None = None
        self.snapshot: Snapshot | None = None
        self.arrived = False

    def take(self, state: LocalState, step: int, generation: int, ring: Ring) -> None:
        """Copy this rank's rows, and begin to send them and to receive the ward's."""
        parts = ring.place.parts
        self.arrived = False
        copies = self._own.lay_out(state.tensors, parts)
        for path, copy in copies.items():
            copy.copy_(state.rows[path])
        whole = {path: tensor.to("cpu", copy=True) for path, tensor in state.whole.items()}
        self.snapshot = Snapshot(step, generation, state.document, whole, by_part(parts, state.tensors, copies))
        received = self._ward.lay_out(state.tensors, ring.ward_parts)
        wards = by_part(ring.ward_parts, state.tensors, received)
        self._thread = threading.Thread(target=self._travel, args=(ring, wards), daemon=True, name="hot copy")
        self._thread.start()

    def wait(self) -> None:
        """Until nothing of it is on its way to or from this rank, arrived or not."""
        if self._thread is not None:
            self._thread.join()

    def give_up(self, ring: Ring) -> None:
        """The same, for a group that is broken: peers may never answer."""
        if self._thread is not None and self._thread.is_alive():
            # A wait on gloo that times out closes all of the group's connections, which frees the other thread.
            with contextlib.suppress(RuntimeError):
                ring.group.recv([torch.empty(1)], ring.ward, _POKE_TAG).wait(timedelta(milliseconds=1))
            self._thread.join()

    def _travel(self, ring: Ring, received: Mapping[Part, Rows]) -> None:
        assert self.snapshot is not None
        ours, theirs = self._own.block, self._ward.block
        try:
            for start in range(0, max(ours.numel(), theirs.numel()), _PIECE_BYTES):
                piece = slice(start, start + _PIECE_BYTES)
                works = []
                # By the group's own methods, which also a group that is being dropped answers.
                if start < theirs.numel():
                    works.append((ring.group.recv([theirs[piece]], ring.ward, _TAG), theirs))
                if start < ours.numel():
                    works.append((ring.group.send([ours[piece]], ring.keeper, _TAG), ours))
                for work, block in works:
                    wait_for_message(work, block)
        except RuntimeError:
            # The generation is broken, which the training thread finds out by itself.
            return
        self.snapshot.parts.update(received)
        self.arrived = True


class HotCopies:
    """The newest copy that every rank has in full, and the one that is on its way."""

    def __init__(self) -> None:
        self._ring: Ring | None = None
        self._kept: list[_Copy] = []
        self._travelling: _Copy | None = None
        self._spare = _Copy()

    def enter(self, ring: Ring | None) -> None:
        """Copies are made along this ring from now on. None is a rank alone, which has no use for any.

        Those of earlier generations stay until one of this ring's is complete.
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
        """Whether this rank has its own and its ward's part of the copy on its way."""
        return self._travelling is not None and self._travelling.arrived

    def start(self, state: LocalState, step: int, generation: int) -> None:
        """Copy this rank's rows now and exchange them with the neighbours in the background. Due on every rank."""
        assert self._ring is not None
        assert self._travelling is None
        self._travelling, self._spare = self._spare, _Copy()
        self._travelling.take(state, step, generation, self._ring)

    def confirm(self) -> None:
        """Every rank has its parts: this copy replaces those before."""
        assert self._travelling is not None
        if self._kept:
            self._spare = self._kept[-1]
            self._spare.snapshot = None
        self._kept, self._travelling = [self._travelling], None

    def snapshots(self) -> list[Snapshot]:
        """What there is to go back to. Of a copy that has not arrived everywhere others may have the rest."""
        copies = self._kept if self._travelling is None else [*self._kept, self._travelling]
        return [copy.snapshot for copy in copies if copy.snapshot is not None]

    def settle(self) -> None:
        """Wait until nothing is on its way to or from this rank, while the group still stands."""
        if self._travelling is not None:
            self._travelling.wait()

    def abandon(self) -> None:
        """Let go of the group, broken as it may be."""
        if self._travelling is not None and self._ring is not None:
            self._travelling.give_up(self._ring)
