"""The session: lets a script keep its loop, and trains it on one rank or on many.

One iteration of the script's loop is one step. It begins when the loop asks for a batch, and its boundary is the
moment at which the loop asks for the next one: between the two the script may change what it has handed over.

    ask -> batch -> forward, session.backward -> session.step -> scheduler, average, validation -> ask

If a rank is lost, the sums of that step fail on the others: `session.step()` then returns False, and what was
handed over is put back when the loop asks for its next batch, which is the same batch, dealt to the ranks anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from oakum_worker.data_sets import SampleStream, SizedDataset
from oakum_worker.errors import SessionError, let_warnings_through
from oakum_worker.gathering import no_gathering
from oakum_worker.session.hosts import HOST, Asked, Host
from oakum_worker.session.iteration import Iteration
from oakum_worker.session.parts import Ending, GuardedOptimizer, as_list, named_parts, one_model
from oakum_worker.session.refusals import (
    IN_PARTS,
    find_complaint,
    refuse_backward,
    refuse_losses,
    refuse_own_gradients,
    refuse_stranger,
    under_way,
)
from oakum_worker.session.rehearsals import ScriptRehearsals
from oakum_worker.session.steps import ScriptSteps
from oakum_worker.state.cursor import Cursor
from oakum_worker.task import Stateful, Task
from oakum_worker.torch_internals import float_types_of_graph


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
    out; where it gives them, they have to be equal. `state` holds whatever else training changes, as objects with
    `state_dict` and `load_state_dict`: schedulers, averages, the best loss so far. `collate` makes a batch from a
    list of samples.

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
        loss=refuse_losses,
        optimizer=guarded,
        collate=collate,
        extra_state={**named_parts(state), "session": ending},
    )
    if (complaint := find_complaint(task, optimizers)) is not None:
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
        self._steps = ScriptSteps(task, optimizer, ending, host, asked)
        self._loop = self._steps.loop
        self._rehearsals = ScriptRehearsals(self._steps)
        self._is_iterated = False
        self._iterator: Iterator[Any] | None = None
        self.how_to_weigh = "give session.backward(total, weight=items) the sum and what it is to be divided by"
        """How the script tells what a loss is a mean over."""
        self.holders: dict[str, object] = {}
        """What else of the script may hold state that changes, such as callbacks, by what it is called."""

    @property
    def steps(self) -> int:
        """Finished steps since training began, over all resumptions; equal on every rank."""
        return self._loop.step_count

    @property
    def epoch(self) -> int:
        """The number of the present epoch, from 0: the epoch of the batch under way, or of the next one."""
        iteration = self._steps.iteration
        return iteration.cursor.epoch if iteration is not None else self._loop.progress.epoch

    @property
    def is_first_rank(self) -> bool:
        """Whether this is rank 0, for work of one rank such as logging. Nothing that affects training may depend
        on it, and another process may be rank 0 after the next step."""
        return self._loop.ranks.rank == 0

    @property
    def rank(self) -> int:
        """This rank's number, from 0 on. What holds for `is_first_rank` holds for it."""
        return self._loop.ranks.rank

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
        `backward`, summed over its calls. Also where another process has taken that step; NaN before the first
        one."""
        return self._steps.loss

    @property
    def finished_epochs(self) -> int:
        """Epochs whose last step was taken."""
        return self._loop.progress.epoch

    @property
    def is_finished(self) -> bool:
        """Whether the last epoch's last step was taken, or training was stopped before."""
        return self._loop.finished

    @property
    def is_open(self) -> bool:
        """Whether the session was entered and has not come to its end."""
        return self._steps.has_started and not self._steps.is_over

    @property
    def has_batch_schedule(self) -> bool:
        """Whether the spec changes the batch's size from an epoch on."""
        return bool(self._loop.loss_parts.spec.batch_schedule)

    def leave_iteration(self) -> None:
        """The script's code of the present iteration is over, though its boundary may still come: random numbers
        are no sample's any more."""
        self._rehearsals.leave()
        if self._steps.iteration is not None:
            self._steps.iteration.close()

    def __enter__(self) -> Self:
        """Fill model, optimizer and state from the other ranks or the newest checkpoint, where there are any."""
        self._steps.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        steps = self._steps
        self._rehearsals.leave(error)
        try:
            if kind is None and not steps.is_over:
                steps.drop_iteration()
                self._come_to_boundary()
                steps.stop()
        finally:
            steps.is_over = True
            if steps.iteration is not None:
                steps.iteration.close()
            steps.optimizer.release()
            self._rehearsals.forget_state()

    def __iter__(self) -> Iterator[Any]:
        """This rank's share of each global batch, up to the end of the last epoch. Where a batch has fewer samples
        than there are ranks, some ranks are given its first sample, which then counts nothing."""
        if not self._steps.has_started:
            raise SessionError("the loop begins outside of `with oakum.session(...) as session:`: put it inside")
        if self._is_iterated or self._steps.is_over:
            raise SessionError(
                "the session is iterated a second time: one loop runs through all epochs (give epochs=, and ask "
                "session.epoch)"
            )
        self._is_iterated = True
        self._iterator = self._batches()
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
            raise SessionError(f"parallel.batch_norm is synchronised and {IN_PARTS}")
        iteration.draw_for(self._loop, iteration.positions[first : first + count], count if is_counted else 0)
        try:
            with (
                contextlib.nullcontext()
                if is_whole
                else no_gathering(f"the loop gathers the batch and {IN_PARTS}")
            ):
                yield
        finally:
            if not (iteration.is_reduced or iteration.is_closed):
                iteration.draw_for(self._loop, iteration.positions, iteration.num_counted)

    def put_back(self) -> None:
        """Undo what the script has changed, other than weights, since it was given the present batch, and begin
        the batch's draws anew. Raises `SessionError` outside of the loop."""
        iteration = self._under_way("put_back")
        self._loop.state.put_back()
        self._steps.optimizer.restore_options(iteration.options)
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
        refuse_backward(iteration, loss, is_weighted=weight is not None)
        refuse_own_gradients(iteration)
        iteration.is_weighted = weight is not None
        inputs = None
        if optimizer is not None:
            refuse_stranger(optimizer, self._steps.optimizer.members)
            inputs = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        engine = self._steps.engine
        engine.backward(loss.reshape(()), iteration.num_computed, last=False, inputs=inputs, weight=weight)
        iteration.backwards += 1
        iteration.note_gradients(self._steps.parameters)
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
        self._steps.end_passes(iteration)
        if iteration.is_rehearsal:
            self._rehearsals.take(iteration)
        else:
            self._steps.sum(iteration)

    def step(self, *optimizers: Optimizer) -> bool:
        """Sum the gradients over the ranks and take the step of the given optimizers, of all where none is given.

        Returns whether the step was taken. It was not where a rank was lost meanwhile, or where the loop has drawn
        its first random number after steps without any: what the rest of the loop's body changes in what was
        handed over is then undone, and the batch comes again. Raises `SessionError` where the loop is at fault,
        and `DivergedError` where training has diverged.
        """
        iteration = self._under_way("step")
        for one in optimizers:
            refuse_stranger(one, self._steps.optimizer.members)
        if not iteration.is_reduced:
            self._reduce(iteration)
        self._steps.take(iteration, list(optimizers) or self._steps.optimizer.members)
        return iteration.result is not None

    def _batches(self) -> Iterator[Any]:
        steps, rehearsals = self._steps, self._rehearsals
        rehearsals.note_state(self, self.holders, self._iterator)
        self._iterator = None
        try:
            while not steps.is_over:
                self._come_to_boundary()
                if steps.is_at_end:
                    steps.finish()
                    return
                if rehearsals.is_due:
                    yield from rehearsals.batches(self.how_to_weigh)
                yield steps.open()
        finally:
            rehearsals.leave_loop()
            self._is_iterated = True

    def _come_to_boundary(self) -> None:
        if (iteration := self._steps.end_body()) is None:
            return
        if iteration.result is not None:
            self._rehearsals.tell_of_state()
        self._steps.pass_boundary(iteration)

    def _under_way(self, what: str) -> Iteration:
        return under_way(self._steps.iteration, what, is_over=self._steps.is_over)
