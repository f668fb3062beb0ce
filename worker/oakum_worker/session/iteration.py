"""One iteration of a script's loop: the batch of one step, and what the loop's body has done with it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from oakum_worker.errors import GroupError
from oakum_worker.gathering import Share, alone
from oakum_worker.parallel.chunks import Chunk
from oakum_worker.parallel.lost_peers import LostInPasses
from oakum_worker.parallel.step_engine import Reduced
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.training_loop import StepResult, TrainingLoop
from oakum_worker.torch_internals import tensor_version


class Iteration:
    """One iteration of the script's loop: the batch of one step."""

    def __init__(
        self, cursor: Cursor, options: list[dict[str, Any]], chunk: Chunk, *, is_rehearsal: bool = False
    ) -> None:
        self.cursor, self.options, self.is_rehearsal = cursor, options, is_rehearsal
        self._chunk = chunk
        self.positions = chunk.positions
        """The samples of this rank's batch, as positions in the global batch."""
        self.num_counted = self.num_computed = chunk.num_counted
        """Samples that the batch, and the part of it that is being computed, add to the global batch."""
        self.backwards = 0
        self.is_weighted: bool | None = None
        """Whether the losses have weights; None before the first one."""
        self.types: set[torch.dtype] = set()
        """In a rehearsal, the types in which losses were computed."""
        self.is_reduced = self.is_stepped = self.is_closed = False
        self.reduced: Reduced | None = None
        self.result: StepResult | None = None
        self.lost: GroupError | None = None
        self.lost_in_passes = LostInPasses()
        self._share: Share | None = None
        self._noted: list[tuple[nn.Parameter, torch.Tensor | None, int]] = []
        self._computing, self._drawing, self._gathering = ExitStack(), ExitStack(), ExitStack()

    @property
    def is_done(self) -> bool:
        """Whether the step was taken, or could not be taken."""
        return self.is_stepped or (self.is_reduced and self.reduced is None)

    def note_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Note the gradients as they are when the step begins, and after a backward pass."""
        self._noted = [(p, p.grad, _version_of(p.grad)) for p in parameters]

    @property
    def has_changed_gradients(self) -> bool:
        """Whether gradients were made or changed since they were noted. Such as were dropped, or set to 0, do no
        harm: the ranks' sum then has none of these samples'."""
        return any(
            p.grad is not None and (p.grad is not grad or _version_of(grad) != version) and bool(p.grad.any())
            for p, grad, version in self._noted
        )

    def forget_gradients(self) -> None:
        """Note nothing any more, so that no gradient is kept that nobody else needs."""
        self._noted = []

    @property
    def gathers(self) -> bool:
        """Whether the script has gathered the batch."""
        return self._share is not None and self._share.was_gathered

    def enter(self, loop: TrainingLoop, num_global: int) -> Any:
        """Read and collate this rank's samples of a batch of `num_global`, and let what the script draws until
        `leave_drawing` be the samples' own. Returns the batch."""
        self._computing.enter_context(loop.clock.computing())
        parts = loop.loss_parts
        indices = parts.sampler.indices(self.cursor, self.positions)
        batch, _ = parts.forward.prepared(
            self.cursor, self.positions, indices, lambda _: None, ahead=not self.is_rehearsal
        )
        parts.norms.counts, parts.norms.lost = self.num_counted > 0, self.lost_in_passes
        if self.is_rehearsal:
            gathering = alone(self.positions)
        else:
            gathering = parts.gathering.by_hand(num_global, self._chunk, self.lost_in_passes)
        self._share = self._gathering.enter_context(gathering)
        self.draw_for(loop, self.positions, self.num_counted)
        return batch

    def draw_for(self, loop: TrainingLoop, positions: range, num_counted: int) -> None:
        """From now on the samples at these positions are computed."""
        self.num_computed = num_counted
        self._drawing.close()
        self._drawing.enter_context(loop.loss_parts.forward.drawing(self.cursor.step, positions))

    def leave_drawing(self) -> None:
        """From now on random numbers are no sample's."""
        self._drawing.close()

    def close(self) -> None:
        """The script's code of this iteration has come to its end."""
        self.is_closed = True
        for stack in (self._drawing, self._gathering):
            with contextlib.suppress(ValueError):  # entered in another context, as by a debugger
                stack.close()
        self._computing.close()


def _version_of(gradient: torch.Tensor | None) -> int:
    return 0 if gradient is None else tensor_version(gradient)
