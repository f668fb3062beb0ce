"""Messages between the workers of a replica, point to point.

Each ordered pair of workers has a group of its own, and what goes over it has one order that both know, so no
tags are needed: NCCL has none, and where both directions shared a communicator, two workers that send to each
other at once would wait for each other for ever. gloo moves a message only once its receiver has asked for it, so
receives are posted before they are due.

Tensors travel as their bytes. A receiver has to know shapes and types: the first activations of a place (pipe,
boundary, number of samples) in a generation come behind a header that says them, later ones and gradients do not.
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
from oakum_worker.group import lost_peers
from oakum_worker.parallel.pipeline.messages import Part, TensorSpec, ValuesSpec
from oakum_worker.parallel.pipeline.operations import SENDS, Schedule
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import wait_for_message

_CPU = torch.device("cpu")
_POSTED_AHEAD = 2

Tensors = tuple[torch.Tensor, ...]


@dataclass
class _Outbox:
    """Messages to one peer, in their order."""

    group: dist.ProcessGroup
    pending: deque[list[tuple[dist.Work, torch.Tensor]]] = field(default_factory=deque)
    """For each message that may not have arrived, its works and the memory that they read."""
    num_released: int = 0
    """Messages of this step that are known to have arrived."""


@dataclass
class _Posted:
    """A message for which there is memory, and which may arrive at any time."""

    part: Part
    tensors: Tensors
    works: list[dist.Work]


@dataclass
class _Inbox:
    """Messages from one peer, in their order."""

    group: dist.ProcessGroup
    expected: deque[Part] = field(default_factory=deque)
    posted: deque[_Posted] = field(default_factory=deque)


class Links:
    """One worker's connections to the workers beside it, within one generation.

    Raises `GroupError` where a peer is gone. Receiving from a peer may be left to a thread of its own.
    """

    def __init__(
        self,
        subgroups: Subgroups,
        ranks: Sequence[int],
        worker: int,
        pairs: Iterable[tuple[int, int]],
        device: torch.device = _CPU,
    ) -> None:
        """Collective among the workers of the replica, with the same `ranks` and `pairs`.

        `ranks[worker]` is the worker's rank in the generation, `pairs` are the (sender, receiver) among the
        workers (`pairs_of` finds a schedule's), and `device` is what tensors arrive on.
        """
        self._device = device
        self._timeout = subgroups.timeout
        self._specs: dict[tuple[int, int, int], ValuesSpec] = {}
        self._outboxes: dict[int, _Outbox] = {}
        self._inboxes: dict[int, _Inbox] = {}
        # One order on all workers, or two would wait for each other to form different groups.
        for sender, receiver in sorted(set(pairs)):
            if worker not in (sender, receiver):
                continue
            members = ranks[sender], ranks[receiver]
            group = subgroups.form(f"link-{members[0]}-{members[1]}", members)
            assert group is not None
            if worker == sender:
                self._outboxes[receiver] = _Outbox(group)
            else:
                self._inboxes[sender] = _Inbox(group)

    def send(self, peer: int, part: Part, values: Values) -> None:
        """Send what belongs to `part`; does not wait for the receiver. Keeps the memory until it has arrived.

        Raises `TaskError` where activations are shaped otherwise than those of as many samples before.
        """
        outbox = self._outboxes[peer]
        tensors = values if isinstance(values, tuple) else (values,)
        works = [] if part.is_gradient else self._tell(outbox, part, values)
        works += [self._put(outbox, tensor) for tensor in tensors]
        outbox.pending.append(works)

    def _tell(self, outbox: _Outbox, part: Part, values: Values) -> list[tuple[dist.Work, torch.Tensor]]:
        """Let the receiver know what comes, the first time."""
        spec, known = ValuesSpec.of(values), self._specs.get(part.place)
        if known is not None:
            if spec != known:
                raise TaskError(
                    f"the {part} were {known} at first and are {spec} now: micro-batches of as many samples must "
                    "have the same shapes in a pipeline; pad each batch to one length"
                )
            return []
        self._specs[part.place] = spec
        header = torch.frombuffer(bytearray(spec.encode()), dtype=torch.uint8)
        return [self._put(outbox, torch.tensor([len(header)])), self._put(outbox, header)]

    def send_number(self, peer: int, number: int) -> None:
        """Say which micro-batch the next message is of, where the receiver cannot know."""
        outbox = self._outboxes[peer]
        outbox.pending.append([self._put(outbox, torch.tensor([number]))])

    def _put(self, outbox: _Outbox, tensor: torch.Tensor) -> tuple[dist.Work, torch.Tensor]:
        wire = _bytes_of(tensor.detach().to(self._device))
        with lost_peers("while it was sent to"):
            work: Any = dist.isend(wire, group=outbox.group, group_dst=1)
        return work, wire

    def release(self, peer: int, num_messages: int) -> None:
        """The step's first so many messages to the peer have arrived, as an answer to them has: let them go."""
        outbox = self._outboxes[peer]
        while outbox.num_released < num_messages:
            self._finish(outbox.pending.popleft())
            outbox.num_released += 1

    def settle(self) -> None:
        """Wait until all that was sent has arrived, at the end of a step."""
        for outbox in self._outboxes.values():
            while outbox.pending:
                self._finish(outbox.pending.popleft())
            outbox.num_released = 0

    def _finish(self, works: list[tuple[dist.Work, torch.Tensor]]) -> None:
        with lost_peers("before a message reached it"):
            for work, wire in works:
                wait_for_message(work, wire, self._timeout)

    def expect(self, peer: int, parts: Iterable[Part]) -> None:
        """What will come from a peer in this step, in its order; receiving begins."""
        inbox = self._inboxes[peer]
        inbox.expected.extend(parts)
        self._post(inbox)

    def receive(self, peer: int) -> Values:
        """The next of what is expected from the peer; gradients are a tuple of those that are required.

        Activations that require gradients are leaves.
        """
        inbox = self._inboxes[peer]
        if not inbox.posted and inbox.expected[0].place not in self._specs:
            self._specs[inbox.expected[0].place] = self._hear(inbox)
        self._post(inbox)
        posted = inbox.posted.popleft()
        with lost_peers("before its message had come"):
            for work, tensor in zip(posted.works, posted.tensors, strict=True):
                wait_for_message(work, tensor, self._timeout)
        self._post(inbox)
        if posted.part.is_gradient:
            return posted.tensors
        return self._specs[posted.part.place].assemble(posted.tensors)

    def receive_number(self, peer: int) -> int:
        """Which micro-batch the next message is of."""
        return int(self._get(self._inboxes[peer], TensorSpec((1,), torch.int64, False)).item())

    def _post(self, inbox: _Inbox) -> None:
        while inbox.expected and len(inbox.posted) < _POSTED_AHEAD:
            part = inbox.expected[0]
            spec = self._specs.get(part.place)
            if spec is None:
                return
            specs = spec.gradients if part.is_gradient else spec.tensors
            tensors = tuple(one.empty(self._device) for one in specs)
            works = [self._take(inbox, tensor) for tensor in tensors]
            inbox.posted.append(_Posted(inbox.expected.popleft(), tensors, works))

    def _hear(self, inbox: _Inbox) -> ValuesSpec:
        length = int(self._get(inbox, TensorSpec((1,), torch.int64, False)).item())
        header = self._get(inbox, TensorSpec((length,), torch.uint8, False))
        return ValuesSpec.decode(bytes(header.tolist()))

    def _get(self, inbox: _Inbox, spec: TensorSpec) -> torch.Tensor:
        tensor = spec.empty(self._device)
        work = self._take(inbox, tensor)
        with lost_peers("before its message had come"):
            wait_for_message(work, tensor, self._timeout)
        return tensor

    def _take(self, inbox: _Inbox, tensor: torch.Tensor) -> dist.Work:
        with lost_peers("while a message from it was asked for"):
            work: Any = dist.irecv(_bytes_of(tensor), group=inbox.group, group_src=0)
        return work


def pairs_of(schedule: Schedule) -> set[tuple[int, int]]:
    """(sender, receiver) of a schedule's messages."""
    return {
        (worker, schedule.peer_of(operation))
        for worker, operations in enumerate(schedule.operations)
        for operation in operations
        if operation.kind in SENDS
    }


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor's memory, shape (bytes,); of a copy where the tensor has gaps."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
