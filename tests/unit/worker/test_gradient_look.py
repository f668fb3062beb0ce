"""Parameters without a gradient are named in a process's first step."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import oakum
from cells import each
from chained_task import PartlyIdle, build_enclosing_task, build_idle_task
from oakum_worker.errors import SessionError, TaskError, TrainingWarning
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.parallel.gradient_look import GradientLook, describe_lacking_gradients
from oakum_worker.parallel.step_engine import StepVotes
from oakum_worker.step.training_loop import TrainingLoop
from training_ranks import Points, build_loop, build_model, build_spec, mean_squared_error

IDLE = "2.idle.weight, 2.idle.bias"
LIKELY = (
    ": no gradient came from the first loss, so it may stay as it is: the loss was computed with another object "
    "than the one that is trained, or the layer is not used"
)


def told_by(loop: Any, steps: int) -> list[str]:
    """What the steps say."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TrainingWarning)
        for _ in range(steps):
            loop.step()
    return [str(one.message) for one in caught if one.category is TrainingWarning]


@each("dtype", [torch.float64, torch.bfloat16])
@each("changes", [{}, {"micro_batch": 3}, {"global_batch": 1}])
def test_the_first_step_alone_names_what_got_no_gradient(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    loop = build_loop(PartlyIdle(8, 8), dataset=Points(dtype), **changes)
    loop.task.model.to(dtype)
    loop = TrainingLoop(loop.task, build_spec(**changes))
    assert told_by(loop, 3) == [IDLE + LIKELY]


def test_many_names_are_counted() -> None:
    names = [f"w{number}" for number in range(12)]
    assert describe_lacking_gradients(names) == f"{', '.join(names[:10])} and 2 more{LIKELY}"


def test_a_step_that_trains_nothing_is_not_taken() -> None:
    other = build_model(seed=1)
    loop = build_loop(loss=lambda model, batch: mean_squared_error(other, batch))
    with pytest.raises(TaskError, match="no parameter of the model got a gradient: the loss was"):
        loop.step()
    assert loop.step_count == 0


def test_a_rank_without_samples_expects_no_gradient() -> None:
    reducer = GradientReducer(build_model())
    reducer.look = GradientLook()
    reducer.begin(0, 2, StepVotes)
    assert reducer.look.expected == []


def a_copy_is_trained(loop: TrainingLoop) -> TrainingLoop:
    """The loop, as it is in the first generation of a lone sharded rank."""
    state = loop.assembly.state
    assert state is not None
    before = [parameter.detach().clone() for parameter in loop.task.model.parameters()]
    state.lay_out(None, 0, 1, lambda document: [document])
    with torch.no_grad():
        for parameter, value in zip(loop.task.model.parameters(), before, strict=True):
            parameter.copy_(value)
    return loop


def test_a_loss_of_the_entrypoints_own_model_is_refused_where_another_is_trained() -> None:
    loop = a_copy_is_trained(TrainingLoop(build_enclosing_task(), build_spec(parallel={"data": "sharded"})))
    complaint = "the loss was computed with 0.weight of the model that the entrypoint has built, and a sharded"
    with pytest.raises(TaskError, match=re.escape(complaint)):
        loop.step()
    assert loop.step_count == 0


def test_a_lone_shard_names_what_got_no_gradient() -> None:
    loop = a_copy_is_trained(TrainingLoop(build_idle_task(), build_spec(parallel={"data": "sharded"})))
    assert told_by(loop, 2) == ["0.idle.weight, 0.idle.bias, " + IDLE + LIKELY]


class Script:
    """A script's loop over a session of two models with an optimizer each."""

    def __init__(self, *, both: bool, dtype: torch.dtype = torch.float64) -> None:
        self.models = [build_model(PartlyIdle(8, 8)).to(dtype), build_model().to(dtype)]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in self.models]
        self.both = both
        self.data = Points(dtype)
        self.losses: list[float] = []

    def step(self) -> None:
        """Take all steps."""
        with oakum.session(self.models, self.optimizers, self.data, batch_size=8) as session:
            for batch in session:
                for model, optimizer in zip(self.models, self.optimizers, strict=True):
                    if self.both or model is self.models[0]:
                        session.backward(mean_squared_error(model, batch), optimizer)
                session.step()
                self.losses.append(session.loss)


@each("both", [True, False])
@each("dtype", [torch.float64, torch.bfloat16])
def test_a_sessions_first_iteration_names_what_none_of_its_losses_gave_a_gradient(
    both: bool, dtype: torch.dtype
) -> None:
    others = [] if both else [f"1.{number}.{name}" for number in (0, 2) for name in ("weight", "bias")]
    script = Script(both=both, dtype=dtype)
    assert told_by(script, 1) == [", ".join(["0.2.idle.weight", "0.2.idle.bias", *others]) + LIKELY]
    assert len(script.losses) == 7


def test_a_session_refuses_a_loss_of_another_model_in_any_iteration() -> None:
    model, other = build_model(), nn.Linear(5, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with oakum.session(model, optimizer, Points(), batch_size=8) as session:
        batches = iter(session)
        session.backward(mean_squared_error(model, next(batches)))
        session.step()
        session.backward(mean_squared_error(other, next(batches)))
        with pytest.raises(SessionError, match="no parameter of the session's model has a gradient"):
            session.step()
