"""The session: lets a script keep its loop, and trains it on one rank or on many.

One iteration of the script's loop is one step. It begins when the loop asks for a batch, and its boundary is the
moment at which the loop asks for the next one: between the two the script may change what it has handed over.

    ask -> batch -> forward, session.backward -> session.step -> scheduler, average, validation -> ask

If a rank is lost, the sums of that step fail on the others: `session.step()` then returns False, and what was
handed over is put back when the loop asks for its next batch, which is the same batch, dealt to the ranks anew.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.utils.data import default_collate

from oakum_worker.data_sets import SampleStream, SizedDataset
from oakum_worker.errors import (
    GroupError,
    SessionError,
    SharesMissingError,
    let_warnings_through,
    warn_of_training,
)
from oakum_worker.gathering import no_gathering
from oakum_worker.parallel.chunks import Chunk
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.randomness.counters import mix, seed_everything
from oakum_worker.rehearsal import splits_batches
from oakum_worker.rehearsal.own_objects import frame_of_script
from oakum_worker.rehearsal.script import ScriptRehearsal, refuse_or_warn
from oakum_worker.rehearsal.unsaved_state import UnsavedState
from oakum_worker.session.alike import RanksAlike
from oakum_worker.session.hosts import HOST, Asked, Host
from oakum_worker.session.iteration import Iteration
from oakum_worker.session.parts import Ending, GuardedOptimizer, as_list, named_parts, one_model
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.step_batch import StepBatch
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.turns import Course
from oakum_worker.task import Stateful, Task
from oakum_worker.task_checks import first_complaint
from oakum_worker.torch_internals import float_types_of_graph, has_compiled


def session(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    dataset: SizedDataset | SampleStream,
    *,
    batch_size: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    state: Sequence[Stateful] | Mapping[str, Stateful] = (),
    collate: Callable[[list[Any]], Any] = default_collate,
    exact: bool | None = None,
) -> Session:
    """A session for a training loop of one's own, to be used in a `with` statement.

    `batch_size` is the number of samples of one step over all nodes together, `epochs` (1) the passes over the
    data set, `seed` (0) fixes the order of the samples and the random numbers drawn for them, `workers` (0) the
    processes of each rank that read samples ahead. A trainer's spec gives all four, and the script may leave them
    out; where it gives them, they have to be equal. `state` holds
    whatever else training changes, as objects with `state_dict` and `load_state_dict`: schedulers, averages, the
    best loss so far. `collate` makes a batch from a list of samples.

    Before the first step a few samples are computed as a whole and in parts, and the loop raises `SessionError`
    where another number of nodes would make another training of it. `exact=False` says that it may: then the same
    is only warned of.

    Raises `SessionError` where these cannot be trained.
    """
    models = as_list(model, nn.Module, "model")
    optimizers = as_list(optimizer, Optimizer, "optimizer")
    guarded = GuardedOptimizer(optimizers)
    ending = Ending()
    task = Task(
        model=one_model(models),
        dataset=dataset,
        loss=_no_loss,
        optimizer=guarded,
        collate=collate,
        extra_state={**named_parts(state), "session": ending},
    )
    if (complaint := _complaint(task, optimizers)) is not None:
        guarded.release()
        raise SessionError(f"session(): {complaint}")
    return Session(task, guarded, ending, HOST.get(), Asked(batch_size, epochs, seed, workers, exact))


def is_alone() -> bool:
    """Whether sessions of this thread train alone, in a plain Python process that no trainer has."""
    return HOST.get().is_alone


class Session:
    """A training loop of one's own under way; `session` makes one."""

    def __init__(self, task: Task, optimizer: GuardedOptimizer, ending: Ending, host: Host, asked: Asked) -> None:
        let_warnings_through()
        self._host, self._ending, self._optimizer = host, ending, optimizer
        self._loop = TrainingLoop(task, host.spec(asked), by_hand=True)
        self._loop.is_stopped = lambda: ending.is_stopped
        engine = self._loop.assembly.engine
        assert isinstance(engine, GradientReducer)
        self._engine = engine
        self._task = task
        self._parameters = [*task.model.parameters()]
        self._course: Course | None = None
        self._is_iterated = self._is_over = False
        self._open: Iteration | None = None
        self._loss = float("nan")
        self._has_taken = self._all_leave = False
        self._rehearsal: ScriptRehearsal | None = None
        self.how_to_weigh = "give session.backward(total, weight=items) the sum and what it is to be divided by"
        """How the script tells what a loss is a mean over."""
        self.holders: dict[str, object] = {}
        """What else of the script may hold state that changes, such as callbacks, by what it is called."""
        self._unsaved: UnsavedState | None = None
        self._alike = RanksAlike(self._loop)
        self._rehearsed_at: int | None = None
        self._begins_to_draw = False
        """Whether a step was undone because the loop has drawn numbers in it for the first time."""
        self._unrehearsed: str | None = None
        """Why the first samples could not be rehearsed."""
        self._iterator: Iterator[Any] | None = None

    @property
    def steps(self) -> int:
        """Finished steps since training began, over all resumptions; equal on every rank."""
        return self._loop.step_count

    @property
    def epoch(self) -> int:
        """The number of the present epoch, from 0: the epoch of the batch under way, or of the next one."""
        return self._open.cursor.epoch if self._open is not None else self._loop.epoch

    @property
    def is_first_rank(self) -> bool:
        """Whether this is rank 0, for work of one rank such as logging. Nothing that affects training may depend
        on it, and another process may be rank 0 after the next step."""
        return self._loop.rank == 0

    @property
    def rank(self) -> int:
        """This rank's number, from 0 on. What holds for `is_first_rank` holds for it."""
        return self._loop.rank

    @property
    def short_batch(self) -> int | None:
        """Samples of the global batch under way where it is an epoch's last and smaller than the others; otherwise
        None. Raises `SessionError` outside of the loop."""
        iteration = self._under_way("short_batch")
        parts, cursor = self._loop.loss_parts, iteration.cursor
        size, full = parts.sampler.batch_size(cursor), parts.sampler.batch_size(Cursor(cursor.step, cursor.epoch))
        return size if size < full and not iteration.is_rehearsal else None

    @property
    def positions(self) -> range:
        """Where the samples of the batch that this rank was given last are in the global batch. Raises
        `SessionError` outside of the loop."""
        return self._under_way("positions").positions

    @property
    def loss(self) -> float:
        """The last summed step's loss before its update: the mean over the global batch of what was given to
        `backward`, summed over its calls. NaN before the first step of this process."""
        return self._loss

    @property
    def finished_epochs(self) -> int:
        """Epochs whose last step was taken."""
        return self._loop.epoch

    @property
    def is_finished(self) -> bool:
        """Whether the last epoch's last step was taken, or training was stopped before."""
        return self._loop.finished

    @property
    def is_open(self) -> bool:
        """Whether the session was entered and has not come to its end."""
        return self._course is not None and not self._is_over

    @property
    def has_batch_schedule(self) -> bool:
        """Whether the spec changes the batch's size from an epoch on."""
        return bool(self._loop.loss_parts.spec.batch_schedule)

    def leave_iteration(self) -> None:
        """The script's code of the present iteration is over, though its boundary may still come: random numbers
        are no sample's any more."""
        self._leave_rehearsal()
        if self._open is not None:
            self._open.close()

    def __enter__(self) -> Self:
        """Fill model, optimizer and state from the other ranks or the newest checkpoint, where there are any."""
        if self._course is not None:
            raise SessionError("the session is entered a second time: make a new one with oakum.session(...)")
        self._course = Course(self._host.turns(self._loop))
        self._leave_if_told()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._leave_rehearsal(error)
        try:
            if kind is None and not self._is_over:
                self._stop_early()
        finally:
            self._is_over = True
            if self._open is not None:
                self._open.close()
            self._optimizer.release()
            self._forget_state()

    def __iter__(self) -> Iterator[Any]:
        """This rank's share of each global batch, up to the end of the last epoch. Where a batch has fewer samples
        than there are ranks, some ranks are given its first sample, which then counts nothing."""
        if self._course is None:
            raise SessionError("the loop begins outside of `with oakum.session(...) as session:`: put it inside")
        if self._is_iterated or self._is_over:
            raise SessionError(
                "the session is iterated a second time: one loop runs through all epochs (give epochs=, and ask "
                "session.epoch)"
            )
        self._is_iterated = True
        self._iterator = self._batches(self._course)
        return self._iterator

    @property
    def num_samples(self) -> int:
        """Samples of the batch that this rank was given last. Raises `SessionError` outside of the loop."""
        return len(self._under_way("num_samples").positions)

    @contextlib.contextmanager
    def part(self, first: int, count: int) -> Iterator[None]:
        """Context for the passes of `count` samples of this rank's batch, from its number `first` on.

        A loop whose batch is too large for one pass computes it in parts: `backward` is given the mean over the
        part, and random numbers are drawn for the part's samples. The parts have to make up the batch.
        """
        iteration = self._under_way("part")
        whole = range(len(iteration.positions))
        if not 0 <= first < first + count <= len(whole):
            raise SessionError(
                f"session.part({first}, {count}) of a batch of {len(whole)} samples: stay within the batch"
            )
        is_counted = iteration.num_counted > 0
        is_whole = count == len(whole)
        if not is_whole and self._loop.loss_parts.norms.is_used and not iteration.is_rehearsal:
            raise SessionError(f"parallel.batch_norm is synchronised and {_IN_PARTS}")
        iteration.draw_for(self._loop, iteration.positions[first : first + count], count if is_counted else 0)
        try:
            with (
                contextlib.nullcontext()
                if is_whole
                else no_gathering(f"the loop gathers the batch and {_IN_PARTS}")
            ):
                yield
        finally:
            if not (iteration.is_reduced or iteration.is_closed):
                iteration.draw_for(self._loop, iteration.positions, iteration.num_counted)

    def put_back(self) -> None:
        """Undo what the script has changed, other than weights, since it was given the present batch, and begin
        the batch's draws anew. Raises `SessionError` outside of the loop."""
        iteration = self._under_way("put_back")
        self._loop.put_back()
        self._optimizer.restore_options(iteration.options)
        iteration.draw_for(self._loop, iteration.positions, iteration.num_counted)

    def backward(
        self,
        loss: torch.Tensor,
        optimizer: Optimizer | None = None,
        *,
        weight: float | torch.Tensor | None = None,
    ) -> None:
        """Add the gradient of a loss, the mean over this rank's batch, to those of this step.

        With an `optimizer`, only its parameters get gradients, as for the losses of a GAN. With a `weight` the
        loss is a sum over items that are no samples, such as tokens, and `weight` is their number: the step's loss
        is the sum of all losses, of all calls and ranks, over the sum of all weights. Raises `SessionError` for a
        loss that is no scalar or does not depend on the session's parameters.
        """
        iteration = self._under_way("backward")
        if iteration.is_reduced:
            raise SessionError("session.backward() after session.reduce() in the same iteration: call it before")
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise SessionError(f"backward() got {_described(loss)}: give the mean loss over the batch, a scalar")
        if not loss.requires_grad:
            raise SessionError(
                "backward() got a loss that does not depend on any parameter: compute it with the model that the "
                "session has, with gradients"
            )
        if iteration.is_weighted not in (None, weight is not None):
            raise SessionError(
                "backward() was given a weight in one call of this iteration and none in another. All that is "
                "given with weights is divided by their sum: compute one loss, or give each of them a weight"
            )
        iteration.is_weighted = weight is not None
        inputs = None
        if optimizer is not None:
            self._member(optimizer)
            inputs = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._engine.backward(loss.reshape(()), iteration.num_computed, last=False, inputs=inputs, weight=weight)
        iteration.backwards += 1
        iteration.note_gradients(self._parameters)
        if iteration.is_rehearsal:
            iteration.types |= float_types_of_graph(loss)

    def reduce(self) -> bool:
        """Sum the gradients over the ranks: every `p.grad` is then the gradient of the global batch's loss, to be
        clipped or looked at before `step`, which otherwise does the same.

        Returns whether they were summed. They were not in the cases that `step` names: it then takes no step, and
        what the rest of the loop's body changes is undone. Raises `SessionError` where the loop is at fault.
        """
        iteration = self._under_way("reduce")
        if not iteration.is_reduced:
            self._reduce(iteration)
        return iteration.reduced is not None

    def _reduce(self, iteration: Iteration) -> None:
        if not iteration.backwards:
            raise SessionError("session.step() without session.backward(loss) in this iteration: call it first")
        self._refuse_other_parameters(iteration)
        if iteration.has_changed_gradients:
            raise SessionError(
                "gradients were changed between session.backward() and the sum over the ranks, such as clipped: "
                "they are those of this rank's samples alone. Call session.reduce() first, and then change them"
            )
        iteration.leave_drawing()
        iteration.is_reduced = True
        if iteration.is_rehearsal:
            assert self._rehearsal is not None
            loss, weight, is_total = self._engine.own_part()
            self._rehearsal.take(
                loss,
                weight,
                self._engine.own_gradients(),
                is_total=is_total,
                gathers=iteration.gathers,
                types=iteration.types,
            )
            return
        if self._has_missed_draws(iteration):
            return
        try:
            if iteration.lost_in_passes.error is not None:
                raise iteration.lost_in_passes.error
            try:
                iteration.reduced = self._engine.finish()
            except SharesMissingError:
                self._settle_who_left(is_leaving=False)
            self._loop.check_step()
            if iteration.reduced is not None and (text := self._alike.find_differences()) and self.is_first_rank:
                warn_of_training(text, stacklevel=3)
        except GroupError as error:
            iteration.lost, iteration.reduced = error, None
        if iteration.reduced is not None:
            self._loss = iteration.reduced.loss

    def _has_missed_draws(self, iteration: Iteration) -> bool:
        """Whether the loop has drawn numbers for the first time, while nothing watched for it: its batch then has
        to come again. Nothing watches any more after a step without draws, as watching slows all that the loop
        computes."""
        randomness, is_together = self._loop.loss_parts.forward.randomness, self._loop.loss_parts.norms.is_used
        if randomness.has_missed:
            randomness.wake()
            self._begins_to_draw = True
            if iteration.gathers:  # the others do not gather again
                raise SessionError("the loop begins to draw random numbers and to gather the batch in one step")
            return True
        # Threads share torch's generator, so in another than the main one somebody else may draw.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not (randomness.has_drawn or iteration.gathers or is_together or has_compiled()):
            randomness.rest()
        return False

    def step(self, *optimizers: Optimizer) -> bool:
        """Sum the gradients over the ranks and take the step of the given optimizers, of all where none is given.

        Returns whether the step was taken. It was not where a rank was lost meanwhile, or where the loop has drawn
        its first random number after steps without any: what the rest of the loop's body changes in what was
        handed over is then undone, and the batch comes again. Raises `SessionError` where
        the loop is at fault, and `DivergedError` where training has diverged.
        """
        iteration = self._under_way("step")
        for one in optimizers:
            self._member(one)
        if not iteration.is_reduced:
            self._reduce(iteration)
        self._optimizer.chosen = list(optimizers) or self._optimizer.members
        if iteration.reduced is not None:
            iteration.result = self._loop.take_step(iteration.reduced, settled=False)
            self._has_taken = True
        iteration.is_stepped = True
        seed_everything(mix(self._loop.loss_parts.spec.seed, self.steps))
        return iteration.result is not None

    def _batches(self, course: Course) -> Iterator[Any]:
        self._note_state()
        try:
            while not self._is_over:
                self._close_iteration(course)
                if course.order is None or self._ending.is_stopped:
                    self._finish(course)
                    return
                if self._is_to_be_rehearsed:
                    yield from self._rehearsed()
                yield self._begin(course)
        finally:
            # A copy of the process goes on to `__exit__`, which is told the error.
            if self._rehearsal is not None and not self._rehearsal.is_copy:
                self._leave_rehearsal()
            self._is_iterated = True

    @property
    def _is_to_be_rehearsed(self) -> bool:
        spec = self._loop.loss_parts.spec
        depends = self._host.is_alone or splits_batches(spec)
        if not (spec.rehearsal and depends):
            return False
        is_later = self.steps in _REHEARSED_LATER or self._begins_to_draw
        is_due = not self.steps or (is_later and spec.exact and not has_compiled())
        return is_due and (self._rehearsed_at != self.steps or self._begins_to_draw)

    def _rehearsed(self) -> Iterator[Any]:
        """Some of the next samples, as a whole and in parts, each in a copy of this process or, where there can be
        none, in an iteration that is undone. Raises `SessionError` where training would depend on the number of
        nodes."""
        spec, is_first = self._loop.loss_parts.spec, not self.steps
        num_samples = self._loop.loss_parts.sampler.batch_size(self._loop.cursor)
        rehearsal = self._rehearsal = ScriptRehearsal(
            self._task,
            spec.seed,
            num_samples=num_samples,
            num_ranks=self._loop.world_size,
            how_to_weigh=self.how_to_weigh,
            batch_dims=self._loop.batch_dims,
            is_first=is_first,
            logged=self._unsaved.logged if self._unsaved is not None else None,
        )
        self._rehearsed_at, self._begins_to_draw = self.steps, False
        while (positions := rehearsal.next_samples()) is not None:
            yield self._begin_rehearsal(rehearsal, positions)
            self._end_rehearsal(rehearsal)
        self._rehearsal, self._unrehearsed = None, rehearsal.obstacle
        findings = (one for one in rehearsal.findings() if is_first or not one.is_of_batch_norm)
        refuse_or_warn(findings, is_exact=spec.exact, is_alone=self._host.is_alone)
        if (text := rehearsal.describe_logged()) is not None and self.is_first_rank:
            warn_of_training(text, stacklevel=3)

    def _begin_rehearsal(self, rehearsal: ScriptRehearsal, positions: range) -> Any:
        loop, options = self._loop, self._optimizer.options()
        loop.open_step()
        if rehearsal.is_copy and self.steps:
            loop.loss_parts.forward.randomness.wake()
        chunk = Chunk(positions, len(positions))
        iteration = self._open = Iteration(loop.cursor, options, chunk, is_rehearsal=True)
        self._engine.begin(len(positions), len(positions))
        try:
            batch = iteration.enter(loop, len(positions))
        except BaseException:
            self._end_rehearsal(rehearsal)
            raise
        return rehearsal.take_batch(batch)

    def _end_rehearsal(self, rehearsal: ScriptRehearsal) -> None:
        iteration, self._open = self._open, None
        assert iteration is not None
        if not iteration.is_reduced:
            rehearsal.break_off()
        iteration.close()
        self._loop.abandon_step()
        self._optimizer.restore_options(iteration.options)

    def _leave_rehearsal(self, error: BaseException | None = None) -> None:
        """The loop was left, or its body has raised: a copy of the process ends here."""
        if self._rehearsal is not None:
            self._rehearsal.break_off(error)
            self._rehearsal = None

    def _note_state(self) -> None:
        """Before the first step, note what the script holds that nothing saves."""
        spec = self._loop.loss_parts.spec
        if self.steps or not spec.rehearsal:
            return
        dataset = self._task.dataset
        saved: list[object] = [self, self._task.model, dataset, *self._optimizer.members]
        saved += self._task.extra_state.values()
        self._unsaved = UnsavedState(frame_of_script(), self.holders, saved, self._iterator, dataset)
        self._iterator = None

    def _tell_of_state(self) -> None:
        """After one of the first steps, warn of state that has changed and that nobody saves, and after the very
        first of a rehearsal that could not be made."""
        if self._unrehearsed is not None:
            warn_of_training(self._unrehearsed, stacklevel=4)
            self._unrehearsed = None
        if self._unsaved is None:
            return
        text = self._unsaved.find_changes(self._loss, self._loop.epoch)
        if text is not None and self.is_first_rank:
            warn_of_training(text, stacklevel=4)
        if self._unsaved.is_done:
            self._forget_state()

    def _forget_state(self) -> None:
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None:
            unsaved.release()

    def _begin(self, course: Course) -> Any:
        assert course.order is not None
        loop = self._loop
        options = self._optimizer.options()
        self._alike.note(options)
        loop.open_step()
        parts = loop.loss_parts
        total = parts.sampler.batch_size(loop.cursor)
        batch = StepBatch(parts, loop.cursor, total, 1.0, None)
        [chunk] = batch.chunks(loop.rank, loop.world_size, together=True)
        iteration = self._open = Iteration(loop.cursor, options, chunk)
        self._engine.begin(chunk.num_counted, total, loop.votes(course.order.signal, course.order.checkpoint))
        try:
            return iteration.enter(loop, total)
        except BaseException:
            loop.abandon_step()
            iteration.close()
            raise

    def _close_iteration(self, course: Course) -> None:
        """Come to the boundary: hand the step's result on, or undo it and go on in the next generation."""
        iteration = self._open
        if iteration is None:
            return
        if not iteration.is_done:
            raise SessionError(
                "the loop asks for the next batch without session.step(): call it in each iteration"
            )
        self._open = None
        iteration.close()
        if iteration.result is not None:
            self._tell_of_state()
            self._loop.settle()
            course.taken(iteration.result)
        else:
            self._loop.abandon_step()
            self._optimizer.restore_options(iteration.options)
            # Only now: the fact is part of what was put back.
            self._ending.is_stopped = self._all_leave
            if iteration.lost is not None:
                course.failed(iteration.lost)
        self._leave_if_told()

    def _finish(self, course: Course) -> None:
        if course.order is not None:
            course.stop()
            self._leave_if_told()
        self._is_over = True

    def _stop_early(self) -> None:
        """The script has left its loop before the last epoch's end: do so on all ranks, or on none."""
        course, iteration = self._course, self._open
        assert course is not None
        if iteration is not None and iteration.is_done and iteration.result is None:
            why = "it was one of the rehearsal" if iteration.is_rehearsal else "a rank was lost"
            raise SessionError(
                f"the loop was left in an iteration whose step was undone, because {why}: decide on the end where "
                "`session.step()` has returned True"
            )
        if iteration is not None and not iteration.is_done:
            iteration.close()
            self._loop.abandon_step()
            self._open = None
        self._close_iteration(course)
        while course.order is not None and not self._ending.is_stopped:
            self._agree_to_stop(course)
        self._finish(course)

    def _agree_to_stop(self, course: Course) -> None:
        """Take part in the others' step without a sample, which tells them that this rank has left its loop."""
        loop = self._loop
        assert course.order is not None
        if loop.world_size == 1:
            self._ending.is_stopped = True
            return
        total = loop.loss_parts.sampler.batch_size(loop.cursor)
        self._engine.begin(0, total, loop.votes(course.order.signal, False))
        self._engine.abstain()
        try:
            try:
                self._engine.finish()
            except SharesMissingError:
                self._settle_who_left(is_leaving=True)
                self._ending.is_stopped = True
        except GroupError as error:
            course.failed(error)
            self._leave_if_told()

    def _settle_who_left(self, *, is_leaving: bool) -> None:
        """Find out which ranks have left their loops. Where all have, but those that have just come, training
        stops. Raises `SessionError` on every rank where they do not agree, and `GroupError` where a rank is
        gone."""
        loop = self._loop
        is_new = not is_leaving and not self._has_taken
        leaving, new = loop.sums_over_ranks(float(is_leaving), float(is_new))
        if round(leaving + new) < loop.world_size:
            raise SessionError(
                f"{leaving:.0f} of {loop.world_size} ranks have left their loops after step {loop.step_count}, "
                "and the others go on: leave the loop for a reason that is equal on every rank, such as "
                "session.loss, and not for the rank's number or its own share's loss"
            )
        self._all_leave = True

    def _under_way(self, what: str) -> Iteration:
        iteration = self._open
        if self._is_over:
            raise SessionError(f"session.{what}() after the end of training: call it in the loop over the session")
        if iteration is None:
            raise SessionError(f"session.{what}() outside of the loop: call it in `for batch in session:`")
        if iteration.is_stepped:
            raise SessionError(
                f"session.{what}() after session.step() in the same iteration: one iteration is one step; add up "
                "losses with several calls of backward() before it"
            )
        return iteration

    def _member(self, optimizer: Optimizer) -> None:
        if not any(optimizer is one for one in self._optimizer.members):
            raise SessionError(f"this {type(optimizer).__name__} is not the session's: give it to session(...)")

    def _refuse_other_parameters(self, iteration: Iteration) -> None:
        if not (self._has_taken and self.steps % _LOOKED_AT_EVERY) and not self._has_its_parameters():
            raise SessionError(
                "the model's parameters were replaced since the session began: build the model first, and change "
                "values in place (`load_state_dict`, `p.data.copy_`)"
            )
        if iteration.num_counted and not self._engine.has_gradients:
            raise SessionError(
                "no parameter of the session's model has a gradient: the loss is that of another model; compute "
                "it with the model that session(...) was given"
            )

    def _has_its_parameters(self) -> bool:
        present = list(self._task.model.parameters())
        same = len(present) == len(self._parameters)
        return same and all(a is b for a, b in zip(present, self._parameters, strict=True))

    def _leave_if_told(self) -> None:
        course = self._course
        if course is not None and course.order is None and not course.is_finished:
            self._host.leave()


_REHEARSED_LATER = (8, 64)
"""Finished steps after which a script is rehearsed again."""
_LOOKED_AT_EVERY = 16
"""Steps after which the model's parameters are listed again, which takes as long as computing some layers."""
_IN_PARTS = (
    "this rank computes its samples in several parts, of which others may have more: compute them at once, by a "
    "larger batch_size of the data loader and less accumulation"
)


def _no_loss(*_: Any) -> torch.Tensor:
    raise SessionError("a session's losses are computed by its script")


def _complaint(task: Task, optimizers: Sequence[Optimizer]) -> str | None:
    if any(isinstance(one, SparseAdam) for one in optimizers):
        return "SparseAdam takes sparse gradients alone, and gradients summed over ranks are dense: use Adam"
    if any(isinstance(one, LBFGS) for one in optimizers):
        return "LBFGS evaluates the loss several times in a step: use an optimizer that does so once"
    earlier: set[int] = set()
    for one in optimizers:
        own = {id(p) for group in one.param_groups for p in group["params"]}
        if own & earlier:
            return "two optimizers have a parameter in common: give each parameter to one of them"
        earlier |= own
    for part in task.extra_state.values():
        if part in optimizers or part is task.model:
            return f"state has the {type(part).__name__} that the session has already: leave it out"
    return first_complaint(task)


def _described(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"a {type(value).__name__}{shape}"
