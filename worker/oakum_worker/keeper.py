"""How a trainer's state outlives generations, ranks and nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import torch
import torch.distributed as dist

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.host_memory import HostMemory
from oakum_worker.errors import CheckpointError, GroupError
from oakum_worker.protocol import Generation
from oakum_worker.spec_options import CheckpointSpec
from oakum_worker.trainer import TrainingLoop

NO_STATE = -1
_HOT_SHARE = 0.01
"""Largest share of the time that copies in memory may take."""


class Keeper(Protocol):
    """Keeps the state of one rank's `TrainingLoop`, together with the other ranks'."""

    def begin(self, generation: Generation, rank: int) -> str:
        """Bring all ranks of the generation, whose group the loop has joined, to the same finished step.

        Returns where the state came from: `survivor`, `memory`, `checkpoint` or `scratch`. Raises `GroupError`.
        """

    def durable_due(self) -> bool:
        """Whether a durable checkpoint should be asked for; rank 0's answer counts."""

    def after_step(self, *, durable: bool) -> bool:
        """Do what is due at this step boundary; `durable`, the same on every rank, is what rank 0 asked for.

        Returns whether a rank that has been told to close may do so here.
        """

    def before_switch(self, generation: Generation, rank: int) -> None:
        """Every rank has agreed to leave the generation at this step boundary. Its group still stands."""

    def finish(self) -> None:
        """Make the end durable: training is done. Returns on each rank when it is."""

    def close(self, *, save: bool) -> None:
        """This rank leaves and no other goes on; `save` where its state is to be made durable."""

    def close_at_once(self, *, save: bool) -> bool:
        """The same from another thread, in the middle of a step; False if that has to wait for the boundary."""


class ReplicatedKeeper:
    """Of a trainer whose every rank holds the whole state: each replica is a copy of the others."""

    def __init__(
        self,
        loop: TrainingLoop,
        spec: CheckpointSpec,
        checkpoints: DurableCheckpoints,
        memory: HostMemory | None,
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._checkpoints = checkpoints
        self._memory = memory
        self._warn = warn
        self._has_state = False
        self._from_memory = False
        self._rank, self._alone = 0, False
        self._written_s = time.monotonic()
        self._next_copy_s = 0.0
        self._failure = ""
        """Why the last attempt at a durable checkpoint failed; said once."""

    def recall(self) -> None:
        """Take up the state that this rank's predecessor on the node has left in memory, if it did."""
        if self._memory is not None and (found := self._memory.load()) is not None:
            state, step = found
            newest = self._checkpoints.newest()
            if newest is not None and newest.step > step:
                return  # It was written after the copy, for which there was no time or no need.
            self._loop.load_state_dict(state)
            self._has_state = self._from_memory = True

    def begin(self, generation: Generation, rank: int) -> str:
        """See `Keeper`. The highest finished step that any rank has counts, rank 0's durable checkpoint else."""
        self._rank, self._alone = rank, len(generation.members) == 1
        if not self._alone and self._memory is not None:
            self._memory.release()
        steps = self._gather_steps(generation.world_size)
        best = max(steps)
        source = "memory" if self._from_memory and steps[rank] == best else "survivor"
        if best == NO_STATE:
            source = self._load_newest() if rank == 0 else "checkpoint"
        if generation.world_size > 1 and min(steps) < max(best, 0):
            # Half-received state is no state: it must not be taken for a survivor's if this breaks.
            self._has_state = steps[rank] == best and best != NO_STATE
            self._loop.share_state(source=steps.index(best))
        self._has_state, self._from_memory = True, False
        return source

    def _gather_steps(self, world_size: int) -> list[int]:
        mine = torch.tensor([self._loop.step_count if self._has_state else NO_STATE])
        if world_size == 1:
            return [int(mine)]
        steps = [torch.empty_like(mine) for _ in range(world_size)]
        try:
            dist.all_gather(steps, mine)
        except RuntimeError as error:
            raise GroupError(f"a rank was lost while the generation began: {error}") from error
        return [int(step) for step in steps]

    def _load_newest(self) -> str:
        newest = self._checkpoints.newest()
        for warning in self._checkpoints.skipped:
            self._warn(warning)
        if newest is None:
            return "scratch"
        state = self._loop.state_dict()
        self._checkpoints.load(newest, state)
        self._loop.load_state_dict(state)
        return "checkpoint"

    def durable_due(self) -> bool:
        """See `Keeper`."""
        return time.monotonic() - self._written_s >= self._spec.every_s

    def after_step(self, *, durable: bool) -> bool:
        """See `Keeper`."""
        if durable and self._rank == 0:
            self._save(background=True)
        if self._alone and self._rank == 0 and self._loop.step_count % self._spec.hot_every_steps == 0:
            self._copy_to_memory()
        return True

    def _copy_to_memory(self) -> None:
        """Nobody else holds the state: have a copy that a crash of this process does not take along."""
        began_s = time.monotonic()
        if self._memory is None or began_s < self._next_copy_s:
            return
        try:
            self._memory.store(self._loop.state_dict(), self._loop.step_count)
        except CheckpointError as error:
            self._warn(str(error))
            self._memory = None
        took_s = time.monotonic() - began_s
        self._next_copy_s = began_s + took_s / _HOT_SHARE

    def before_switch(self, generation: Generation, rank: int) -> None:
        """See `Keeper`. The ranks that stay have everything."""

    def finish(self) -> None:
        """See `Keeper`. The others stay until rank 0 has written, able to do it instead."""
        if self._rank == 0:
            self._save(background=False)
        if dist.is_initialized():
            try:
                dist.barrier()
            except RuntimeError as error:
                raise GroupError(f"a rank was lost while the trainer finished: {error}") from error

    def close(self, *, save: bool) -> None:
        """See `Keeper`."""
        if save and self._has_state:
            self._save(background=False)
        else:
            self._checkpoints.wait()

    def close_at_once(self, *, save: bool) -> bool:
        """See `Keeper`. The last finished step's state is there at any moment of the next one."""
        if save and self._has_state:
            with ExitStack() as stack:
                state = stack.enter_context(self._loop.held_at_boundary())
                if self._loop.is_evaluating:
                    return False
                self._checkpoints.wait()
                self._write(lambda: self._checkpoints.save(state, state["cursor"]["step"]))
                # The process is about to end: no step is finished any more that is not saved.
                self._held = stack.pop_all()
        return True

    def _save(self, *, background: bool) -> None:
        """Write a durable checkpoint; a full or read-only disk is reported and training goes on."""
        state, step = self._loop.state_dict(), self._loop.step_count
        if background:
            self._write(lambda: self._checkpoints.save_in_background(state, step))
        else:
            self._checkpoints.wait()
            self._write(lambda: self._checkpoints.save(state, step))
        self._written_s = time.monotonic()

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except CheckpointError as error:
            if str(error) != self._failure:
                self._warn(str(error))
            self._failure = str(error)
        else:
            self._failure = ""
