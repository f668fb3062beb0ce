"""How the state of a replicated trainer outlives its rank: every rank has a copy of all of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import torch
import torch.distributed as dist

from oakum_worker.checkpoint.adoption import is_adopted
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.host_memory import HostMemory
from oakum_worker.errors import CheckpointError, GroupError
from oakum_worker.keeping.keeper import Keeper, KeptState
from oakum_worker.parallel.waiting import all_gather, all_reduce
from oakum_worker.protocol import BestEvaluation, Generation
from oakum_worker.spec_options import CheckpointSpec

NO_STATE = -1
_HOT_SHARE = 0.01
"""Largest share of the time that copies in memory may take."""


class ReplicatedKeeper(Keeper):
    """Keeps the state of a trainer whose ranks each have all of it."""

    def __init__(
        self,
        state: KeptState,
        spec: CheckpointSpec,
        checkpoints: DurableCheckpoints,
        memory: HostMemory | None,
        warn: Callable[[str], None],
    ) -> None:
        self._state = state
        self._spec = spec
        self._checkpoints = checkpoints
        self._memory = memory
        self._warn = warn
        self._has_state = False
        self._from_memory = False
        self._rank, self._alone = 0, False
        self._durable_s = time.monotonic()
        """Until when, in monotonic time, all that was finished is durable, or would be if the disk had let it."""
        self._next_copy_s = 0.0
        self._failure = ""
        """Why the last attempt at a durable checkpoint failed; each new reason is reported once."""

    @property
    def holds_state(self) -> bool:
        """Whether this rank has the trainer's state, so that training can go on from it."""
        return self._has_state

    def recall(self) -> None:
        """Load the copy of the state that an earlier process of this rank left in the node's memory; does nothing
        without one, or where a durable checkpoint is newer."""
        if self._memory is not None and (copy := self._memory.load()) is not None:
            state, step = copy
            newest = self._checkpoints.newest()
            if newest is not None and newest.step > step:
                return  # The checkpoint was written after the copy and has finished more steps.
            self._state.load_state_dict(state)
            self._has_state = self._from_memory = True
            self._durable_s = time.monotonic() - self._checkpoints.age_s()

    def begin(self, generation: Generation, rank: int) -> str:
        """Bring all ranks of the generation to the state of the rank with most finished steps; where no rank has a
        state, to the newest durable checkpoint that rank 0 finds, or else to the beginning.

        Returns where the state came from: `survivor`, `memory`, `checkpoint` or `scratch`. Raises `GroupError`
        when a rank is lost, or when no rank has the state although the service knew of one.
        """
        self._rank, self._alone = rank, len(generation.members) == 1
        steps, ages_s = self._gather_steps(generation.world_size)
        best = max(steps)
        if best == NO_STATE and generation.has_state:
            raise GroupError("no member has the state any more: the service has to find out who else has it")
        source = "memory" if self._from_memory and steps[rank] == best else "survivor"
        if best == NO_STATE:
            source = self._load_newest() if rank == 0 else "checkpoint"
            ages_s = [0.0]
        if generation.world_size > 1 and min(steps) < max(best, 0):
            # If the exchange breaks, a state received in part must not count as a survivor's.
            self._has_state = steps[rank] == best and best != NO_STATE
            self._state.share(source=steps.index(best))
        self._has_state, self._from_memory = True, False
        # Any rank may have to write the next durable checkpoint, so all ranks take over the time since the last
        # one.
        self._durable_s = time.monotonic() - max(ages_s)
        if not self._alone and self._memory is not None:
            self._memory.release()  # only now: the others have it
        return source

    def _gather_steps(self, world_size: int) -> tuple[list[int], list[float]]:
        """For each rank: its finished steps (`NO_STATE` without a state), and the seconds since its last durable
        checkpoint. Collective. Raises `GroupError` when a rank is lost."""
        step = self._state.step_count if self._has_state else NO_STATE
        age_ms = int(1000 * (time.monotonic() - self._durable_s)) if self._has_state else 0
        mine = torch.tensor([step, age_ms])
        rows = [mine]
        if world_size > 1:
            group = dist.group.WORLD
            assert group is not None
            try:
                rows = all_gather(mine, group)
            except RuntimeError as error:
                raise GroupError(f"a rank was lost while the generation began: {error}") from error
        return [int(one[0]) for one in rows], [int(one[1]) / 1000 for one in rows]

    def _load_newest(self) -> str:
        newest = self._checkpoints.newest()
        for warning in self._checkpoints.skipped:
            self._warn(warning)
        if newest is None:
            self._refuse_to_begin_without(self._checkpoints)
            self._checkpoints.note_beginning()
            return "scratch"
        state = self._state.state_dict()
        self._checkpoints.load(newest, state)
        if is_adopted(newest.path):
            self._state.adopt(state)
        else:
            self._state.load_state_dict(state)
        return "checkpoint"

    @staticmethod
    def _refuse_to_begin_without(checkpoints: DurableCheckpoints) -> None:
        """Raise `CheckpointError` where the trainer is to begin from another trainer's state, which is
        unusable."""
        if any(is_adopted(checkpoint.path) for checkpoint in checkpoints.candidates()):
            raise CheckpointError(
                "the state to begin from cannot be used: " + "; ".join(checkpoints.skipped) + ". Submit the "
                "trainer without --from, or from another trainer"
            )

    def durable_due(self) -> bool:
        """Whether at least `every_s` seconds have passed since the last durable checkpoint that this rank knows
        of. Only rank 0's answer is used."""
        return time.monotonic() - self._durable_s >= self._spec.every_s

    def after_step(self, *, durable: bool) -> bool:
        """Write a durable checkpoint in the background on rank 0 if `durable`, and copy the state of a trainer on
        one node to the node's memory if that is due. Returns True: a rank may close at any boundary."""
        if durable and self._rank == 0:
            self._save(background=True)
        elif durable:
            self._durable_s = time.monotonic()
        if self._alone and self._rank == 0 and self._state.step_count % self._spec.hot_every_steps == 0:
            self._copy_to_memory()
        return True

    def _copy_to_memory(self) -> None:
        """Copy the state to the node's memory, where it outlives this process: no other node has the state."""
        began_s = time.monotonic()
        if self._memory is None or began_s < self._next_copy_s:
            return
        try:
            self._memory.store(self._state.state_dict(), self._state.step_count)
        except CheckpointError as error:
            self._warn(str(error))
            self._memory = None
        took_s = time.monotonic() - began_s
        self._next_copy_s = began_s + took_s / _HOT_SHARE

    def keep_best(self, best: BestEvaluation) -> None:
        """Write the state on rank 0, in the background, as a durable checkpoint that stays until a better one is
        written."""
        if self._rank == 0:
            self._checkpoints.wait()  # one that is being written is of an earlier state
            self._checkpoints.best = best
            self._save(background=True)

    def before_switch(self, generation: Generation, rank: int) -> None:
        """Does nothing: the ranks that stay have the whole state."""

    def finish(self) -> None:
        """Save the final state on rank 0. Returns on every rank when the checkpoint is durable, so that the state
        survives if rank 0 is lost meanwhile. Raises `GroupError` when a rank is lost."""
        if self._rank == 0:
            self._save(background=False)
        if (group := dist.group.WORLD) is not None:
            try:
                all_reduce(torch.zeros(1), group)  # the ranks wait for each other
            except RuntimeError as error:
                raise GroupError(f"a rank was lost while the trainer finished: {error}") from error

    def close(self, *, save: bool) -> None:
        """With `save`, write this rank's state as a durable checkpoint; without, or if it has no state, only wait
        until no checkpoint is being written."""
        if save and self._has_state:
            self._save(background=False)
        else:
            self._checkpoints.wait()

    def close_at_once(self, *, save: bool) -> bool:
        """Called from another thread in the middle of a step: with `save`, write the last finished step's state as
        a durable checkpoint. Returns True; False while the task is evaluated, when the weights may not be the
        state's."""
        if save and self._has_state:
            with ExitStack() as stack:
                state = stack.enter_context(self._state.held_at_boundary())
                if self._state.is_evaluating:
                    return False
                self._checkpoints.wait()
                self._write(lambda: self._checkpoints.save(state, state["cursor"]["step"]))
                # The process is about to end: keep the state held, so that no further step is finished unsaved.
                self._held = stack.pop_all()
        return True

    def _save(self, *, background: bool) -> None:
        """Write a durable checkpoint; a full or read-only disk is reported and training goes on."""
        state, step = self._state.state_dict(), self._state.step_count
        if background:
            self._write(lambda: self._checkpoints.save_in_background(state, step))
        else:
            self._checkpoints.wait()
            self._write(lambda: self._checkpoints.save(state, step))
        self._durable_s = time.monotonic()

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except CheckpointError as error:
            if str(error) != self._failure:
                self._warn(str(error))
            self._failure = str(error)
        else:
            self._failure = ""
