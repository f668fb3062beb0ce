"""The steps of a script's loop: how one is opened, summed over the ranks, taken or undone, and how all end."""

from __future__ import annotations

import threading
from typing import Any

from torch.optim import Optimizer

from oakum_worker.errors import GroupError, SessionError, SharesMissingError, warn_of_training
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.randomness.counters import mix, seed_everything
from oakum_worker.session.alike import RanksAlike
from oakum_worker.session.hosts import Asked, Host
from oakum_worker.session.iteration import Iteration
from oakum_worker.session.parts import Ending, GuardedOptimizer
from oakum_worker.session.refusals import refuse_early_end, refuse_other_parameters, refuse_sum
from oakum_worker.step.step_batch import StepBatch
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.turns import Course
from oakum_worker.task import Task
from oakum_worker.torch_internals import has_compiled

_LOOKED_AT_EVERY = 16
"""Steps after which the model's parameters are listed again, which takes as long as computing some layers."""


class ScriptSteps:
    """Takes the steps of a script's loop, one for each iteration, in the order that its host gives."""

    def __init__(self, task: Task, optimizer: GuardedOptimizer, ending: Ending, host: Host, asked: Asked) -> None:
        self.host, self.optimizer, self._ending = host, optimizer, ending
        self.batch_dims = BatchDims()
        self.loop = TrainingLoop(task, host.spec(asked), by_hand=True, batch_dims=self.batch_dims)
        self.loop.progress.is_stopped = lambda: ending.is_stopped
        engine = self.loop.assembly.engine
        assert isinstance(engine, GradientReducer)
        self.engine = engine
        self.parameters = [*task.model.parameters()]
        """Those of the model when the session began."""
        self.iteration: Iteration | None = None
        """The iteration under way."""
        self.loss = float("nan")
        """The last summed step's loss, of this process or of the one whose state it goes on from."""
        self.is_over = False
        """Whether no more steps are taken."""
        self.begins_to_draw = False
        """Whether a step was undone because the loop has drawn numbers in it for the first time."""
        self._course: Course | None = None
        self._has_taken = self._all_leave = False
        self._alike = RanksAlike(self.loop)

    def start(self) -> None:
        """Fill model, optimizer and state from the other ranks or the newest checkpoint, where there are any.
        Raises `SessionError` a second time."""
        if self._course is not None:
            raise SessionError("the session is entered a second time: make a new one with oakum.session(...)")
        self._course = Course(self.host.turns(self.loop))
        if (loss := self.loop.last_loss) is not None:
            self.loss = loss
        self._leave_if_asked()

    @property
    def has_started(self) -> bool:
        """Whether the script has entered its session."""
        return self._course is not None

    @property
    def is_at_end(self) -> bool:
        """Whether there is no step left, or training was stopped."""
        return self._present_course.order is None or self._ending.is_stopped

    @property
    def _present_course(self) -> Course:
        assert self._course is not None
        return self._course

    def open(self) -> Any:
        """Begin the next step. Returns this rank's share of its batch."""
        loop, order = self.loop, self._present_course.order
        assert order is not None
        options = self.optimizer.options()
        self._alike.note(options)
        loop.open_step()
        parts = loop.loss_parts
        total = parts.sampler.batch_size(loop.state.cursor)
        batch = StepBatch(parts, loop.state.cursor, total, 1.0, None)
        [chunk] = batch.chunks(loop.ranks.rank, loop.ranks.world_size, together=True)
        iteration = self.iteration = Iteration(loop.state.cursor, options, chunk)
        self.engine.begin(chunk.num_counted, total, lambda: loop.votes(order.signal, order.checkpoint))
        iteration.note_gradients(self.parameters)
        try:
            return iteration.enter(loop, total)
        except BaseException:
            loop.abandon_step()
            iteration.close()
            raise

    def end_passes(self, iteration: Iteration) -> None:
        """The script asks for the sums: its passes are over. Raises `SessionError` where its gradients are not
        those of this step."""
        if not iteration.backwards:
            raise SessionError("session.step() without session.backward(loss) in this iteration: call it first")
        if not (self._has_taken and self.loop.step_count % _LOOKED_AT_EVERY):
            refuse_other_parameters(self.loop.task.model, self.parameters)
        refuse_sum(iteration, has_gradients=self.engine.has_gradients)
        iteration.forget_gradients()
        iteration.leave_drawing()
        iteration.is_reduced = True

    def sum(self, iteration: Iteration) -> None:
        """Sum the gradients over the ranks, unless a rank is lost or the batch has to come again."""
        if self._has_missed_draws(iteration):
            return
        try:
            if iteration.lost_in_passes.error is not None:
                raise iteration.lost_in_passes.error
            try:
                iteration.reduced = self.engine.finish()
            except SharesMissingError:
                self._settle_who_left(is_leaving=False)
            self.loop.check_step()
            text = self._alike.find_differences() if iteration.reduced is not None else None
            if text is not None and self.loop.ranks.rank == 0:
                warn_of_training(text, stacklevel=4)
        except GroupError as error:
            iteration.lost, iteration.reduced = error, None
        if iteration.reduced is not None:
            self.loss = iteration.reduced.loss

    def _has_missed_draws(self, iteration: Iteration) -> bool:
        """Whether the loop has drawn numbers for the first time, while nothing watched for it: its batch then has
        to come again. Nothing watches any more after a step without draws, as watching slows all that the loop
        computes."""
        randomness, is_together = self.loop.loss_parts.forward.randomness, self.loop.loss_parts.norms.is_used
        if randomness.has_missed:
            randomness.wake()
            self.begins_to_draw = True
            if iteration.gathers:  # the others do not gather again
                raise SessionError("the loop begins to draw random numbers and to gather the batch in one step")
            return True
        # Threads share torch's generator, so in another than the main one somebody else may draw.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not (randomness.has_drawn or iteration.gathers or is_together or has_compiled()):
            randomness.rest()
        return False

    def take(self, iteration: Iteration, optimizers: list[Optimizer]) -> None:
        """Take the step of these optimizers, if the gradients were summed."""
        self.optimizer.chosen = optimizers
        if iteration.reduced is not None:
            iteration.result = self.loop.take_step(iteration.reduced, settled=False)
            self._has_taken = True
        iteration.is_stepped = True
        seed_everything(mix(self.loop.loss_parts.spec.seed, self.loop.step_count))

    def end_body(self) -> Iteration | None:
        """The loop's body is over. Returns the iteration that was under way, which is none any more. Raises
        `SessionError` where it has taken no step."""
        iteration = self.iteration
        if iteration is not None:
            if not iteration.is_done:
                raise SessionError(
                    "the loop asks for the next batch without session.step(): call it in each iteration"
                )
            self.iteration = None
            iteration.close()
        return iteration

    def pass_boundary(self, iteration: Iteration) -> None:
        """Hand the step's result on, or undo the step and go on in the next generation."""
        if iteration.result is not None:
            self.loop.state.settle()
            self._present_course.taken(iteration.result)
        else:
            self.loop.abandon_step()
            self.optimizer.restore_options(iteration.options)
            # Only now: the fact is part of what was put back.
            self._ending.is_stopped = self._all_leave
            if iteration.lost is not None:
                self._present_course.failed(iteration.lost)
        self._leave_if_asked()

    def drop_iteration(self) -> None:
        """The script has left its loop before the last epoch's end: undo a step that it has not taken. Raises
        `SessionError` where it has left in an iteration whose step was undone."""
        iteration = self.iteration
        refuse_early_end(iteration)
        if iteration is not None and not iteration.is_done:
            iteration.close()
            self.loop.abandon_step()
            self.iteration = None

    def stop(self) -> None:
        """End training before the last epoch's end, on all ranks or on none."""
        while not self.is_at_end:
            self._agree_to_stop()
        self.finish()

    def finish(self) -> None:
        """End training: there is no step left, or all have left their loops."""
        course = self._present_course
        if course.order is not None:
            course.stop()
            self._leave_if_asked()
        self.is_over = True

    def _agree_to_stop(self) -> None:
        """Take part in the others' step without a sample, which tells them that this rank has left its loop."""
        loop, course = self.loop, self._present_course
        assert course.order is not None
        if loop.ranks.world_size == 1:
            self._ending.is_stopped = True
            return
        total, signal = loop.loss_parts.sampler.batch_size(loop.state.cursor), course.order.signal
        self.engine.begin(0, total, lambda: loop.votes(signal, False))
        self.engine.abstain()
        try:
            try:
                self.engine.finish()
            except SharesMissingError:
                self._settle_who_left(is_leaving=True)
                self._ending.is_stopped = True
        except GroupError as error:
            course.failed(error)
            self._leave_if_asked()

    def _settle_who_left(self, *, is_leaving: bool) -> None:
        """Find out which ranks have left their loops. Where all have, but those that have just come, training
        stops. Raises `SessionError` on every rank where they do not agree, and `GroupError` where a rank is
        gone."""
        loop = self.loop
        is_new = not is_leaving and not self._has_taken
        leaving, new = loop.ranks.sums(float(is_leaving), float(is_new))
        if round(leaving + new) < loop.ranks.world_size:
            raise SessionError(
                f"{leaving:.0f} of {loop.ranks.world_size} ranks have left their loops after step "
                f"{loop.step_count}, and the others go on: leave the loop for a reason that is equal on every "
                "rank, such as session.loss, and not for the rank's number or its own share's loss"
            )
        self._all_leave = True

    def _leave_if_asked(self) -> None:
        course = self._course
        if course is not None and course.order is None and not course.is_finished:
            self.host.leave()
