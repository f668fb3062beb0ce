"""Chimera schedules: micro-batches enter the workers from both ends (Li and Hoefler, SC'21, arXiv:2107.06925).

A *unit* of at most D micro-batches is laid out in slots of equal length: the k-th forward pass of a pipe is on
stage s in slot s + 2k, and its k-th backward pass in slot D + (D-1-s) + 2k, which is 1F1B for a single pipe. D is
even, so the pipes of the two directions use slots of different parity on a worker and never collide. A worker
takes its operations in the order of their slots; the next unit begins 2D slots later.

With forward doubling, a forward pass takes two micro-batches, which with B = 2F lasts as long as a backward pass
of one. A unit then has 2D micro-batches in the same slots, and the next unit begins 3D slots later. Backward
halving has the same order, but a micro-batch has half the intended number of samples, so that a forward pass takes
the intended number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.communication import with_communication
from oakum_worker.parallel.pipeline.operations import Kind, Operation, Schedule
from oakum_worker.schedule_table import CHIMERA, Scheme


@dataclass(frozen=True)
class _Unit:
    """Micro-batches that are laid out in slots together (see the module): their number, whether forward passes
    take two of them at once (`doubled`), and the unit's length in slots."""

    num_micro_batches: int
    doubled: bool
    num_slots: int
    """Number of slots until the next unit begins."""


class _TimeSlot(NamedTuple):
    """One forward or backward pass of a stage, with the number of the slot in which it lies."""

    number: int
    is_forward: bool
    worker: int
    pipe: int
    stage: int
    micro_batches: range


def chimera(
    num_workers: int,
    num_micro_batches: int,
    *,
    num_pipes: int = 2,
    scheme: Scheme = "auto",
    forward: float = 1.0,
    backward: float = 2.0,
) -> Schedule:
    """A schedule for D = `num_workers`, N = `num_micro_batches` and 2f = `num_pipes` pipes; f must divide D/2.

    A micro-batch is what one backward pass takes, also with backward halving. Of the schemes allowed, and of the
    positions for the incomplete unit if D does not divide N, the fastest for the given times of a forward and a
    backward pass is chosen. Raises `ScheduleError` for numbers that Chimera does not support.
    """
    _check(num_workers, num_micro_batches, num_pipes, scheme)
    layouts = (
        _slots(num_workers, num_pipes, units)
        for name in (("concatenation", "forward-doubling") if scheme == "auto" else (scheme,))
        for units in _sequences(num_workers, num_micro_batches, name)
    )
    slots = min(layouts, key=lambda slots: _makespan(slots, num_workers, forward, backward))
    computations: list[list[Operation]] = [[] for _ in range(num_workers)]
    for slot in slots:
        kind = Kind.FORWARD if slot.is_forward else Kind.BACKWARD
        computations[slot.worker].append(Operation(kind, slot.stage, slot.pipe, tuple(slot.micro_batches)))
    return with_communication(CHIMERA.name, num_micro_batches, placement(num_workers, num_pipes), computations)


def _check(num_workers: int, num_micro_batches: int, num_pipes: int, scheme: str) -> None:
    if num_workers < 2 or num_workers % 2:
        raise ScheduleError(f"Chimera needs an even number of workers, at least 2, not {num_workers}")
    if num_pipes < 2 or num_pipes % 2 or (num_workers // 2) % (num_pipes // 2):
        raise ScheduleError(
            f"Chimera cannot have {num_pipes} pipes on {num_workers} workers: it needs 2f where f divides "
            f"{num_workers // 2}, half the number of workers"
        )
    if num_micro_batches < num_pipes:
        raise ScheduleError(f"{num_micro_batches} micro-batches are too few for {num_pipes} pipes: give each one")
    if scheme not in get_args(Scheme):
        raise ScheduleError(f"Chimera has no scheme {scheme!r}: choose one of {', '.join(get_args(Scheme))}")
    if scheme in ("forward-doubling", "backward-halving") and num_pipes > 2:
        raise ScheduleError(f"{scheme} needs 2 pipes, not {num_pipes}: the slots of more are full already")
    if scheme == "backward-halving" and (num_micro_batches % 2 or num_micro_batches < 4):
        raise ScheduleError(
            f"backward halving needs an even number of halves, at least 4, not {num_micro_batches}: "
            "give two for each forward pass"
        )


def placement(num_workers: int, num_pipes: int) -> tuple[tuple[int, ...], ...]:
    """placement[pipe][stage] is the worker that holds the stage in that pipe.

    With D workers and 2f pipes, pipe 2i runs through the workers in order, its first stage on worker i D/f; pipe
    2i + 1 runs through the same workers in the opposite order.
    """
    distance = 2 * num_workers // num_pipes
    downs = [
        tuple((first + stage) % num_workers for stage in range(num_workers))
        for first in range(0, num_workers, distance)
    ]
    return tuple(workers for down in downs for workers in (down, down[::-1]))


def _sequences(num_workers: int, num_micro_batches: int, scheme: str) -> list[list[_Unit]]:
    """Candidate sequences of units, which differ in the position of the incomplete unit (N mod D micro-batches).

    Doubled units come last, so that the formulas of section 3.5 hold for odd N/D, too. An incomplete unit leaves
    many slots free: it goes first, with the next unit starting early, or last, starting within the slots of the
    unit before.
    """
    single = _Unit(num_workers, False, 2 * num_workers)
    double = _Unit(2 * num_workers, True, 3 * num_workers)
    halving = scheme == "backward-halving"
    if scheme == "concatenation":
        num_units, rest = divmod(num_micro_batches, num_workers)
        whole = [single] * num_units
    else:
        num_units, rest = divmod(num_micro_batches, 2 * num_workers)
        whole = [double] * num_units
        if not halving and rest >= num_workers:
            rest -= num_workers
            whole.insert(0, single)
    if not rest:
        return [whole]
    if not whole:
        return [[_Unit(rest, halving, 0)]]
    firsts = [[_Unit(rest, halving, num_slots), *whole] for num_slots in (0, 2, 4)]
    if whole[-1].doubled:
        return firsts
    lasts = [
        [*whole[:-1], _Unit(num_workers, False, num_slots), _Unit(rest, False, 0)]
        for num_slots in range(2, num_workers + 2)
    ]
    return firsts + lasts


def _slots(num_workers: int, num_pipes: int, units: Sequence[_Unit]) -> list[_TimeSlot]:
    """All passes in the order of their slots. Only an incomplete unit shares slots with another unit; there
    backward passes come first."""
    pipes = placement(num_workers, num_pipes)
    slots: list[_TimeSlot] = []
    first_slot = first = 0
    for unit in units:
        for pipe, share in enumerate(_shares(unit, num_pipes)):
            numbers = range(first, first + share)
            first += share
            for stage, worker in enumerate(pipes[pipe]):
                begin = first_slot + stage
                size = 2 if unit.doubled else 1
                slots += [
                    _TimeSlot(begin + 2 * place, True, worker, pipe, stage, numbers[start : start + size])
                    for place, start in enumerate(range(0, share, size))
                ]
                begin = first_slot + 2 * num_workers - 1 - stage
                slots += [
                    _TimeSlot(begin + 2 * place, False, worker, pipe, stage, numbers[place : place + 1])
                    for place in range(share)
                ]
        first_slot += unit.num_slots
    return sorted(slots, key=lambda slot: (slot.number, slot.is_forward))


def _makespan(slots: Sequence[_TimeSlot], num_workers: int, forward: float, backward: float) -> float:
    """Time until the last pass ends. A pass depends only on earlier slots, so one loop over the slots suffices."""
    clocks = [0.0] * num_workers
    ends: dict[tuple[bool, int, int], float] = {}
    for _, is_forward, worker, _, stage, numbers in slots:
        step = -1 if is_forward else 1
        ready = max(ends.get((is_forward, stage + step, number), 0.0) for number in numbers)
        end = max(clocks[worker], ready) + (forward * len(numbers) if is_forward else backward)
        clocks[worker] = end
        for number in numbers:
            ends[is_forward, stage, number] = end
    return max(clocks)


def _shares(unit: _Unit, num_pipes: int) -> list[int]:
    """Number of the unit's micro-batches for each pipe: as even as possible, and in pairs for a doubled unit."""
    size = 2 if unit.doubled else 1
    whole, rest = divmod(unit.num_micro_batches // size, num_pipes)
    return [size * (whole + (pipe < rest)) for pipe in range(num_pipes)]
