"""Point-to-point messages between the workers of a replica.

Each ordered pair of workers has a process group of its own, and both sides know the order of its messages, so no
tags are needed. NCCL has no tags, and with one communicator for both directions, two workers that send to each
other at once would wait for each other for ever. gloo transfers a message only after its receiver has posted a
receive, so receives are posted early.

Tensors are sent as bytes, so the receiver has to know their shapes and types. In each generation, the first
activations for a given pipe, boundary and number of samples follow a header that tells them; later ones need no
header, and neither do gradients, which have the shapes of their activations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from oakum_worker.chain import Values
from oakum_worker.errors import TaskError
from oakum_worker.parallel.lost_peers import lost_peers
from oakum_worker.parallel.pipeline.messages import BoundaryTensors, TensorHeader, ValuesSpec
from oakum_worker.parallel.pipeline.operations import SENDS, Schedule
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import connect_pair, wait_for_message, wait_for_messages

_CPU = torch.device("cpu")
_POSTED_AHEAD = 2

Tensors = tuple[torch.Tensor, ...]


@dataclass
class _Outbox:
    """Messages sent to one peer, in their order."""

    group: dist.ProcessGroup
    pending: deque[list[tuple[dist.Work, torch.Tensor]]] = field(default_factory=deque)
    """For each message that may not have arrived: its operations and the memory that they read."""
    num_released: int = 0
    """Number of this step's messages that are known to have arrived."""


@dataclass
class _Posted:
    """A message with a posted receive: its memory is allocated and it may arrive at any time."""

    part: BoundaryTensors
    tensors: Tensors
    works: list[dist.Work]


@dataclass
class _Inbox:
    """Messages expected from one peer, in their order."""

    group: dist.ProcessGroup
    expected: deque[BoundaryTensors] = field(default_factory=deque)
    posted: deque[_Posted] = field(default_factory=deque)


class PeerLinks:
    """One worker's connections to its neighbouring workers, within one generation.

    All methods raise `GroupError` when a peer is gone. A separate thread may receive from a peer.
    """

    def __init__(
        self,
        subgroups: Subgroups,
        ranks: Sequence[int],
        worker: int,
        pairs: Iterable[tuple[int, int]],
        device: torch.device = _CPU,
    ) -> None:
        """Collective among the workers of the replica, with equal `ranks` and `pairs` on all.

        `ranks[worker]` is a worker's rank in the generation; `pairs` are all (sender, receiver) pairs of workers,
        which `pairs_of` finds for a schedule. Tensors arrive on `device`.
        """
        self.device = device
        """Where tensors arrive."""
        self._timeout = subgroups.timeout
        self._specs: dict[tuple[int, int, int], ValuesSpec] = {}
        self._outboxes: dict[int, _Outbox] = {}
        self._inboxes: dict[int, _Inbox] = {}
        # All workers form the groups in one order; otherwise two could wait for each other to form different
        # groups.
        for sender, receiver in sorted(set(pairs)):
            if worker not in (sender, receiver):
                continue
            members = ranks[sender], ranks[receiver]
            group = subgroups.form(f"link-{members[0]}-{members[1]}", members)
            assert group is not None
            with lost_peers("while the workers connected"):
                connect_pair(group, device)
            if worker == sender:
                self._outboxes[receiver] = _Outbox(group)
            else:
                self._inboxes[sender] = _Inbox(group)

    def send(self, peer: int, part: BoundaryTensors, values: Values) -> None:
        """Send `values`, described by `part`, to the worker `peer` without waiting for it.

        Their memory is kept until they have arrived. Raises `TaskError` where activations have other shapes than
        earlier ones with the same number of samples.
        """
        outbox = self._outboxes[peer]
        tensors = values if isinstance(values, tuple) else (values,)
        works = [] if part.is_gradient else self._tell(outbox, part, values)
        works += [self._put(outbox, tensor) for tensor in tensors]
        outbox.pending.append(works)

    def _tell(
        self, outbox: _Outbox, part: BoundaryTensors, values: Values
    ) -> list[tuple[dist.Work, torch.Tensor]]:
        """Send a header with shapes and types if these are the first activations for their pipe, boundary and
        number of samples. Returns the operations that were started; none if a header was sent before. Raises
        `TaskError` where the shapes or types differ from the earlier header's."""
        spec, known = ValuesSpec.of(values), self._specs.get(part.place)
        if known is not None:
            if spec != known:
                raise TaskError(
                    f"the {part} were {known} at first and are {spec} now: in a pipeline, micro-batches of the "
                    "same "
                    "number of samples must have the same shapes; pad each batch to one length"
                )
            return []
        self._specs[part.place] = spec
        header = torch.frombuffer(bytearray(spec.encode()), dtype=torch.uint8)
        return [self._put(outbox, torch.tensor([len(header)])), self._put(outbox, header)]

    def send_number(self, peer: int, number: int) -> None:
        """Send the number of the micro-batch to which the next message belongs, if the receiver cannot know it."""
        outbox = self._outboxes[peer]
        outbox.pending.append([self._put(outbox, torch.tensor([number]))])

    def _put(self, outbox: _Outbox, tensor: torch.Tensor) -> tuple[dist.Work, torch.Tensor]:
        wire = _bytes_of(tensor.detach().to(self.device))
        with lost_peers("while it was sent to"):
            work: Any = dist.isend(wire, group=outbox.group, group_dst=1)
        return work, wire

    def release(self, peer: int, num_messages: int) -> None:
        """Free the memory of the first `num_messages` messages that were sent to the peer in this step. The caller
        knows that they have arrived, from a message that the peer sent afterwards."""
        outbox = self._outboxes[peer]
        while outbox.num_released < num_messages:
            self._finish(outbox.pending.popleft())
            outbox.num_released += 1

    def settle(self) -> None:
        """At the end of a step, wait until all sent messages have arrived."""
        for outbox in self._outboxes.values():
            while outbox.pending:
                self._finish(outbox.pending.popleft())
            outbox.num_released = 0

    def _finish(self, works: list[tuple[dist.Work, torch.Tensor]]) -> None:
        with lost_peers("before a message reached it"):
            wait_for_messages(works, self._timeout)

    def expect(self, peer: int, parts: Iterable[BoundaryTensors]) -> None:
        """Announce the messages that will come from `peer` in this step, in order. Receiving begins with the first
        few whose shapes are known; the others follow as messages are taken."""
        inbox = self._inboxes[peer]
        inbox.expected.extend(parts)
        self._post(inbox)

    def receive(self, peer: int) -> Values:
        """Wait for the next expected message of `peer` and return its tensors.

        Activations are leaves of the autograd graph, which require gradients where the sender's did. Gradients are
        a tuple, one for each tensor that requires a gradient.
        """
        inbox = self._inboxes[peer]
        if not inbox.posted and inbox.expected[0].place not in self._specs:
            self._specs[inbox.expected[0].place] = self._hear(inbox)
        self._post(inbox)
        posted = inbox.posted.popleft()
        with lost_peers("before its message had come"):
            wait_for_messages(list(zip(posted.works, posted.tensors, strict=True)), self._timeout)
        self._post(inbox)
        if posted.part.is_gradient:
            return posted.tensors
        return self._specs[posted.part.place].assemble(posted.tensors)

    def receive_number(self, peer: int) -> int:
        """Receive the number of the micro-batch to which the next message belongs."""
        return int(self._get(self._inboxes[peer], TensorHeader((1,), torch.int64, False)).item())

    def _post(self, inbox: _Inbox) -> None:
        while inbox.expected and len(inbox.posted) < _POSTED_AHEAD:
            part = inbox.expected[0]
            spec = self._specs.get(part.place)
            if spec is None:
                return
            specs = spec.gradients if part.is_gradient else spec.tensors
            tensors = tuple(one.empty(self.device) for one in specs)
            works = [self._take(inbox, tensor) for tensor in tensors]
            inbox.posted.append(_Posted(inbox.expected.popleft(), tensors, works))

    def _hear(self, inbox: _Inbox) -> ValuesSpec:
        length = int(self._get(inbox, TensorHeader((1,), torch.int64, False)).item())
        header = self._get(inbox, TensorHeader((length,), torch.uint8, False))
        return ValuesSpec.decode(bytes(header.tolist()))

    def _get(self, inbox: _Inbox, spec: TensorHeader) -> torch.Tensor:
        tensor = spec.empty(self.device)
        work = self._take(inbox, tensor)
        with lost_peers("before its message had come"):
            wait_for_message(work, tensor, self._timeout)
        return tensor

    def _take(self, inbox: _Inbox, tensor: torch.Tensor) -> dist.Work:
        with lost_peers("while a message from it was asked for"):
            work: Any = dist.irecv(_bytes_of(tensor), group=inbox.group, group_src=0)
        return work


def pairs_of(schedule: Schedule) -> set[tuple[int, int]]:
    """The (sender, receiver) pairs between which the schedule sends messages."""
    return {
        (worker, schedule.peer_of(operation))
        for worker, operations in enumerate(schedule.operations)
        for operation in operations
        if operation.kind in SENDS
    }


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, shape (bytes,): a view, or a copy where the tensor is not contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
