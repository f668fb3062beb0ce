"""The common part of engines whose replicas are sets of ranks, each of which has a part of the model.

Such an engine works on a `DividedState`. In the first step of each generation it connects to the ranks with
which its rank computes. All ranks of the generation together sum the loss, the votes and the gradient's norm.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.losses import to_mean
from oakum_worker.parallel.arranging import LayoutArranger
from oakum_worker.parallel.divided_state import DividedState
from oakum_worker.parallel.holdings import by_part
from oakum_worker.parallel.reshard import PartLocations, exchange
from oakum_worker.parallel.step_engine import Curve, Reduced, SplitStateEngine, StateVotes, StepVotes
from oakum_worker.parallel.subgroups import StoreSubgroups, Subgroups
from oakum_worker.parallel.waiting import all_reduce


class Gradients(Protocol):
    """Sums a rank's gradients over the ranks that hold the same parameters."""

    def finish(self, factor: float) -> None:
        """Wait for the sums; each `p.grad` is then `factor` times its sum. Raises `GroupError` when a rank is
        lost."""


class DividedEngine(SplitStateEngine):
    """`StepEngine` of a trainer each of whose replicas divides the model among several ranks. A spare rank
    computes nothing and only takes part in sums."""

    passes_communicate = True

    def __init__(self, state: DividedState[Any], arranger: LayoutArranger[Any, Any, Any]) -> None:
        self._divided = state
        self._arranging = arranger
        self.group: dist.ProcessGroup | None = None
        self.votes: Callable[[], StateVotes] = StateVotes
        self.counted = StateVotes()
        self.steps = 0
        self._subgroups: Subgroups = _alone()

    def join(
        self,
        group: dist.ProcessGroup | None,
        world_size: int,
        *,
        rank: int = 0,
        subgroups: Subgroups | None = None,
    ) -> None:
        """Work over `group` from now on; a `world_size` of 1, with `group` None, is a rank alone. Does not
        communicate: other groups are formed in the first step."""
        self.group = group if world_size > 1 else None
        self._subgroups = subgroups if subgroups is not None and self.group is not None else _alone()
        self.counted = StateVotes()
        self._disconnect()

    @property
    def predicted_curve(self) -> Curve:
        """(nodes, samples per second) as predicted from measurements; empty before anything is measured. May take
        seconds, so not to be read within a step."""
        return self._arranging.predicted_curve()

    @property
    def gain_together(self) -> float | None:
        """How many times as fast ranks of one fragment are predicted to be as so many on different nodes."""
        return self._arranging.gain_together()

    @property
    def grad_norm(self) -> Callable[[], torch.Tensor]:
        """A function that returns the norm of the global batch's gradient, each element counted once, shape ().
        All ranks have to call the function together."""
        return self._grad_norm

    @property
    def has_model_on_each_rank(self) -> bool:
        """False, except for a rank alone: rank 0 gets the other ranks' parts for an evaluation."""
        return self.group is None

    def evaluates_on(self, rank: int) -> bool:
        """True: every rank takes part, since rank 0 gets the other ranks' parts for the evaluation."""
        return True

    @contextmanager
    def whole_model(self) -> Iterator[bool]:
        """Context in which rank 0 has the whole model; a collective. Yields whether this rank has the whole model.

        Within the context rank 0 needs memory for all parameters of the model. Raises `GroupError` if a rank is
        gone.
        """
        if self.group is None:
            yield True
            return
        state = self._divided
        place, split, parts = state.place, state.model_tensors(), state.whole_parts
        wanted = {t.path: t.empty(t.whole) for t in split} if place.rank == 0 else {}
        held = PartLocations(list(place.holdings.first_holders().items()), state.model_parts())
        needed = PartLocations([(part, 0) for part in parts], by_part(parts, split, wanted) if wanted else {})
        exchange(split, held, needed, self.group, place.rank)
        if place.rank:
            yield False
            return
        with state.borrowed(wanted):
            yield True

    @abstractmethod
    def _disconnect(self) -> None:
        """Forget the connections of the previous generation."""

    def _finished(self, numbers: torch.Tensor, num_global: int, gradients: Gradients) -> Reduced:
        """The result of a step on a batch of `num_global` samples. `numbers` is this rank's loss, samples, two
        votes of the step, weight, and the keepers' votes, which are summed over all ranks; waits for the sums.
        Raises `GroupError` if a rank is gone or ranks are at different steps."""
        self._sum(numbers)
        loss, num_samples, signal, flag, weight, *counted = numbers.tolist()
        factor = to_mean(num_global, weight)
        gradients.finish(factor)
        if num_samples != num_global:
            raise GroupError(
                f"the ranks together took {num_samples:g} samples of a batch of {num_global}: "
                "they are not at the same step"
            )
        self.counted = StateVotes.of(counted)
        self.steps += 1
        return Reduced(loss * factor, StepVotes.of(signal, flag))

    def _grad_norm(self) -> torch.Tensor:
        gradients = [p.grad for p in self._divided.first_held if p.grad is not None]
        norms = [torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)) for g in gradients]
        square = (
            torch.stack(norms).double().square().sum().cpu() if norms else torch.zeros((), dtype=torch.float64)
        )
        self._sum(square)
        return square.sqrt().to(self._divided.device)

    def _sum(self, numbers: torch.Tensor) -> None:
        if self.group is None:
            return
        try:
            all_reduce(numbers, self.group)
        except RuntimeError as error:
            raise GroupError(f"a rank was lost during a step: {error}") from error


def _alone() -> Subgroups:
    return StoreSubgroups(dist.HashStore(), 0, dist.default_pg_timeout)
