"""Defines pipeline schedules: for each worker, the operations that it performs, in order.

A schedule belongs to one *replica*: `num_workers` ranks that compute one share of the global batch through all
stages. With data parallelism several replicas run equal schedules side by side.

A *pipe* is one assignment of all stages to the workers. Most schedules have one pipe. Chimera has two or more,
with the stages on different workers, so that several workers hold the weights of a stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of operations that a worker performs in a schedule."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    """First part of a split backward pass: gradients of the stage's inputs, for which the stage before waits."""
    BACKWARD_WEIGHT = "W"
    """Second part of a split backward pass: gradients of the stage's weights."""
    SEND_ACTIVATION = "SA"
    RECEIVE_ACTIVATION = "RA"
    SEND_GRADIENT = "SG"
    RECEIVE_GRADIENT = "RG"
    SYNC = "S"
    """Begin to sum the stage's gradients over the workers that hold the stage."""


COMPUTATIONS = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT})
SENDS = frozenset({Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT})
RECEIVES = frozenset({Kind.RECEIVE_ACTIVATION, Kind.RECEIVE_GRADIENT})


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a worker: its kind, stage, pipe and micro-batches."""

    kind: Kind
    stage: int
    """Number of the stage, from 0: the sender's stage for a send, the receiver's for a receive."""
    pipe: int = 0
    micro_batches: tuple[int, ...] = ()
    """Numbers of the micro-batches within the replica's share: one; two consecutive ones where a forward pass or
    its message takes two at once (forward doubling); none for SYNC."""

    def __str__(self) -> str:
        numbers = " and ".join(str(number) for number in self.micro_batches)
        of = f" of micro-batch {numbers}" if numbers else ""
        return f"{self.kind.name}{of} on stage {self.stage} of pipe {self.pipe}"


def received(send: Operation) -> Operation:
    """The receive operation of the peer that matches a given send."""
    if send.kind is Kind.SEND_ACTIVATION:
        return Operation(Kind.RECEIVE_ACTIVATION, send.stage + 1, send.pipe, send.micro_batches)
    return Operation(Kind.RECEIVE_GRADIENT, send.stage - 1, send.pipe, send.micro_batches)


@dataclass(frozen=True)
class Schedule:
    """The operations of every worker of a replica in one step."""

    name: str
    num_micro_batches: int
    """Number of micro-batches of the replica in all pipes together. Each micro-batch goes through one pipe."""
    placement: tuple[tuple[int, ...], ...]
    """placement[pipe][stage] is the worker that holds the stage."""
    operations: tuple[tuple[Operation, ...], ...]
    """operations[worker] are the worker's operations in order. Sends do not wait for the receiver. Neighbouring
    stages on one worker exchange results without messages."""

    @property
    def num_workers(self) -> int:
        """Number of ranks of a replica."""
        return len(self.operations)

    @property
    def num_stages(self) -> int:
        """Number of stages into which the model is cut, the same in each pipe."""
        return len(self.placement[0])

    @property
    def num_pipes(self) -> int:
        """Number of pipes, which is also the number of workers that hold each stage."""
        return len(self.placement)

    def stages_of(self, worker: int) -> tuple[tuple[int, int], ...]:
        """(pipe, stage) of each stage that the worker holds, in rising order."""
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
        """The sends from one worker to another in the sender's order, in which the receiver gets them."""
        for operation in self.operations[sender]:
            if operation.kind in SENDS and self.peer_of(operation) == receiver:
                yield operation

    def peer_of(self, operation: Operation) -> int:
        """The worker to which a send goes, or from which a receive comes."""
        step = 1 if operation.kind in (Kind.SEND_ACTIVATION, Kind.RECEIVE_GRADIENT) else -1
        return self.placement[operation.pipe][operation.stage + step]
