"""What is found out about a script beside its training: its rehearsals, and state that changes unsaved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oakum_worker.errors import warn_of_training
from oakum_worker.parallel.chunks import Chunk
from oakum_worker.rehearsal import splits_batches
from oakum_worker.rehearsal.own_objects import frame_of_script
from oakum_worker.rehearsal.script import ScriptRehearsal, refuse_or_warn
from oakum_worker.rehearsal.unsaved_state import UnsavedState
from oakum_worker.session.iteration import Iteration
from oakum_worker.session.steps import ScriptSteps
from oakum_worker.torch_internals import has_compiled

_REHEARSED_LATER = (1, 2, 4, 8, 64)
"""Finished steps after which a script is rehearsed again: the first ones find what comes every few steps alone."""
_LOGGED_FROM = 8
"""Finished steps after which a script's numbers are seen to be those that it logs."""


class ScriptRehearsals:
    """Rehearses a script before some of its steps, and looks after others for what nobody saves."""

    def __init__(self, steps: ScriptSteps) -> None:
        self._steps, self._loop = steps, steps.loop
        self._present: ScriptRehearsal | None = None
        self._rehearsed_at: int | None = None
        self._unsaved: UnsavedState | None = None
        self._unrehearsed: str | None = None
        """Why the first samples could not be rehearsed."""

    @property
    def is_due(self) -> bool:
        """Whether the next step is to be rehearsed."""
        spec, steps, count = self._loop.loss_parts.spec, self._steps, self._loop.step_count
        depends = steps.host.is_alone or splits_batches(spec)
        if not (spec.rehearsal and depends):
            return False
        is_later = count in _REHEARSED_LATER or steps.begins_to_draw
        is_due = not count or (is_later and spec.exact and not has_compiled())
        return is_due and (self._rehearsed_at != count or steps.begins_to_draw)

    def batches(self, how_to_weigh: str) -> Iterator[Any]:
        """Some of the next samples, as a whole and in parts, each in a copy of this process or, where there can be
        none, in an iteration that is undone. `how_to_weigh` tells how the script says what a loss is a mean over.
        Raises `SessionError` where training would depend on the number of nodes."""
        loop, steps = self._loop, self._steps
        spec, is_first = loop.loss_parts.spec, not loop.step_count
        rehearsal = self._present = ScriptRehearsal(
            loop.task,
            spec.seed,
            num_samples=loop.loss_parts.sampler.batch_size(loop.state.cursor),
            num_ranks=loop.ranks.world_size,
            how_to_weigh=how_to_weigh,
            batch_dims=steps.batch_dims,
            is_first=is_first,
            logged=self._unsaved.logged if self._unsaved is not None and loop.step_count >= _LOGGED_FROM else None,
        )
        self._rehearsed_at, steps.begins_to_draw = loop.step_count, False
        while (positions := rehearsal.next_samples()) is not None:
            yield self._begin(rehearsal, positions)
            self._end(rehearsal)
        self._present, self._unrehearsed = None, rehearsal.obstacle
        findings = (one for one in rehearsal.findings() if is_first or not one.is_of_batch_norm)
        refuse_or_warn(findings, is_exact=spec.exact, is_alone=steps.host.is_alone)
        if (text := rehearsal.describe_logged()) is not None and loop.ranks.rank == 0:
            warn_of_training(text, stacklevel=3)

    def take(self, iteration: Iteration) -> None:
        """The loop's body has computed the samples of a rehearsal. Does not return in a copy of the process."""
        assert self._present is not None
        loss, weight, is_total = self._steps.engine.own_part()
        self._present.take(
            loss,
            weight,
            self._steps.engine.own_gradients(),
            is_total=is_total,
            gathers=iteration.gathers,
            types=iteration.types,
        )

    def _begin(self, rehearsal: ScriptRehearsal, positions: range) -> Any:
        loop, steps = self._loop, self._steps
        options = steps.optimizer.options()
        loop.open_step()
        if rehearsal.is_copy and loop.step_count:
            loop.loss_parts.forward.randomness.wake()
        chunk = Chunk(positions, len(positions))
        iteration = steps.iteration = Iteration(loop.state.cursor, options, chunk, is_rehearsal=True)
        steps.engine.begin(len(positions), len(positions))
        iteration.note_gradients(steps.parameters)
        try:
            batch = iteration.enter(loop, len(positions))
        except BaseException:
            self._end(rehearsal)
            raise
        return rehearsal.take_batch(batch)

    def _end(self, rehearsal: ScriptRehearsal) -> None:
        iteration, self._steps.iteration = self._steps.iteration, None
        assert iteration is not None
        if not iteration.is_reduced:
            rehearsal.break_off()
        iteration.close()
        self._loop.abandon_step()
        self._steps.optimizer.restore_options(iteration.options)

    def leave(self, error: BaseException | None = None) -> None:
        """The loop was left, or its body has raised: a copy of the process ends here."""
        if self._present is not None:
            self._present.break_off(error)
            self._present = None

    def leave_loop(self) -> None:
        """The loop is over. A copy of the process goes on to its session's end, which is told the error."""
        if self._present is not None and not self._present.is_copy:
            self.leave()

    def note_state(self, session: object, holders: Mapping[str, object], iterator: object) -> None:
        """Before the first step, note what the script holds that nothing saves. The script's loop goes through the
        `iterator` of its `session`; `holders` may hold state, too."""
        loop = self._loop
        if loop.step_count or not loop.loss_parts.spec.rehearsal:
            return
        task = loop.task
        saved: list[object] = [session, task.model, task.dataset, *self._steps.optimizer.members]
        saved += task.extra_state.values()
        self._unsaved = UnsavedState(frame_of_script(), holders, saved, iterator, task.dataset)

    def tell_of_state(self) -> None:
        """After one of the first steps, warn of state that has changed and that nobody saves, and after the very
        first of a rehearsal that could not be made."""
        if self._unrehearsed is not None:
            warn_of_training(self._unrehearsed, stacklevel=4)
            self._unrehearsed = None
        if self._unsaved is None:
            return
        text = self._unsaved.find_changes(self._steps.loss, self._loop.progress.epoch)
        if text is not None and self._loop.ranks.rank == 0:
            warn_of_training(text, stacklevel=4)
        if self._unsaved.is_done:
            self.forget_state()

    def forget_state(self) -> None:
        """Look for unsaved state no more."""
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None:
            unsaved.release()
