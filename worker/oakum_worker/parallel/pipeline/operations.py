"""What a pipeline schedule is: for each worker, the operations that it takes in their order.

A schedule is of one *replica*: `num_workers` ranks that take one share of the global batch through all stages.
With data parallelism several replicas run the same schedule beside each other.

A *pipe* is one way of the stages through the workers. Most schedules have one; Chimera has two or more, each with
the same stages on other workers, so that a stage's weights are on several workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a worker does in one operation."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    """Gradients of the stage's inputs alone, which the stage before waits for (zero bubble)."""
    BACKWARD_WEIGHT = "W"
    """The rest of that backward pass: gradients of the stage's weights."""
    SEND_ACTIVATION = "SA"
    RECEIVE_ACTIVATION = "RA"
    SEND_GRADIENT = "SG"
    RECEIVE_GRADIENT = "RG"
    SYNC = "S"
    """Begin to sum the stage's gradients over the workers that hold it."""


COMPUTATIONS = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT})
SENDS = frozenset({Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT})
RECEIVES = frozenset({Kind.RECEIVE_ACTIVATION, Kind.RECEIVE_GRADIENT})


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a worker does."""

    kind: Kind
    stage: int
    """From 0. Of a send it is the sender's stage, of a receive the receiver's."""
    pipe: int = 0
    micro_batches: tuple[int, ...] = ()
    """Their numbers within the replica's share: one, or two consecutive ones where a forward pass or its message
    takes two at once (forward doubling); none for SYNC."""

    def __str__(self) -> str:
        numbers = " and ".join(str(number) for number in self.micro_batches)
        of = f" of micro-batch {numbers}" if numbers else ""
        return f"{self.kind.name}{of} on stage {self.stage} of pipe {self.pipe}"


def received(send: Operation) -> Operation:
    """The receive at the other end of a send."""
    if send.kind is Kind.SEND_ACTIVATION:
        return Operation(Kind.RECEIVE_ACTIVATION, send.stage + 1, send.pipe, send.micro_batches)
    return Operation(Kind.RECEIVE_GRADIENT, send.stage - 1, send.pipe, send.micro_batches)


@dataclass(frozen=True)
class Schedule:
    """What every worker of a replica does in one step."""

    name: str
    num_micro_batches: int
    """Of the whole replica, all pipes together. Each micro-batch goes through one pipe."""
    placement: tuple[tuple[int, ...], ...]
    """placement[pipe][stage] is the worker that holds it."""
    operations: tuple[tuple[Operation, ...], ...]
    """operations[worker], in the order in which the worker takes them. Sends do not wait for their receiver; a
    stage hands what it has made to a neighbour on the same worker without a message."""

    @property
    def num_workers(self) -> int:
        """Ranks of a replica."""
        return len(self.operations)

    @property
    def num_stages(self) -> int:
        """Parts of the model, which is the same in each pipe."""
        return len(self.placement[0])

    @property
    def num_pipes(self) -> int:
        """Ways through the workers; as many workers hold each stage."""
        return len(self.placement)

    def stages_of(self, worker: int) -> tuple[tuple[int, int], ...]:
        """(pipe, stage) of all that the worker holds, in rising order."""
        return tuple(
            (pipe, stage)
            for pipe, workers in enumerate(self.placement)
            for stage, holder in enumerate(workers)
            if holder == worker
        )

    def holders_of(self, stage: int) -> tuple[int, ...]:
        """The workers that hold a stage, in rising order."""
        return tuple(sorted({workers[stage] for workers in self.placement}))

    def messages(self, sender: int, receiver: int) -> Iterator[Operation]:
        """The sends from one worker to another, in the sender's order, which is also that of their receipt."""
        for operation in self.operations[sender]:
            if operation.kind in SENDS and self.peer_of(operation) == receiver:
                yield operation

    def peer_of(self, operation: Operation) -> int:
        """The worker at the other end of a send or a receive."""
        step = 1 if operation.kind in (Kind.SEND_ACTIVATION, Kind.RECEIVE_GRADIENT) else -1
        return self.placement[operation.pipe][operation.stage + step]
