"""Scripts with loops of their own: what they may do beyond what `test_adapters` shows of every library."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, dropout, mse_loss

import oakum
from cells import each
from oakum_worker.errors import SessionError
from oakum_worker.session.hosts import HOST, Alone, Asked
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.sampler import ElasticSampler
from session_ranks import Plan, Rank, Stage, random_stages
from training_ranks import NUM_SAMPLES, Points

BATCH = 8
STEPS_PER_EPOCH = -(-NUM_SAMPLES // BATCH)


def spec(**changes: Any) -> TrainerSpec:
    fields = {"name": "loop", "script": "loop.py", "global_batch": BATCH, "epochs": 4, "seed": 3}
    return TrainerSpec.model_validate(fields | changes)


class AloneWith(Alone):
    """Alone by a spec."""

    def __init__(self, trainer: TrainerSpec) -> None:
        self._trainer = trainer

    def spec(self, asked: Asked) -> TrainerSpec:
        return self._trainer


def alone(script: Callable[[Any], Any], trainer: TrainerSpec | None = None) -> Any:
    token = HOST.set(AloneWith(trainer or spec()))
    try:
        return script(None)
    finally:
        HOST.reset(token)


def gan(losses: dict[int, float]) -> Callable[[Rank | None], Any]:
    """Two models, two optimizers, both stepped at once, and one alone in every third step."""

    def script(rank: Rank | None) -> Any:
        maker, judge = nn.Linear(5, 5).double(), nn.Linear(5, 1).double()
        with torch.no_grad():
            for p in (*maker.parameters(), *judge.parameters()):
                p.copy_(torch.linspace(-0.4, 0.5, p.numel(), dtype=p.dtype).view_as(p))
        making = torch.optim.Adam(maker.parameters(), lr=0.01)
        judging = torch.optim.SGD(judge.parameters(), lr=0.05, momentum=0.9)
        with oakum.session([maker, judge], [making, judging], Points()) as session:
            for inputs, _ in session:
                if rank is not None:
                    rank.may_die()
                made = maker(inputs.flip(1))
                ones, zeros = torch.ones(len(inputs), 1).double(), torch.zeros(len(inputs), 1).double()
                real, fake = judge(inputs), judge(made.detach())
                doubt = binary_cross_entropy_with_logits
                session.backward(doubt(real, ones) + doubt(fake, zeros), judging)
                session.backward(doubt(judge(made), ones), making)
                taken = session.step(judging) if session.steps % 3 == 2 else session.step()
                if taken:
                    losses[session.steps] = session.loss
        return None

    return script


def test_two_optimizers_end_alike_through_disturbances() -> None:
    expected: dict[int, float] = {}
    found: dict[int, float] = {}
    alone(gan(expected), spec(epochs=3))
    Plan(random_stages(6, seed=10), spec(epochs=3), gan(found)).run()
    assert len(expected) == 3 * STEPS_PER_EPOCH
    assert found == pytest.approx(expected, rel=1e-9)


def little(body: Callable[[Any, Any, Any, nn.Module], Any], **state: Any) -> Callable[[Rank | None], Any]:
    """A script with one linear model, whose loop's body is `body(session, batch, rank, model)`; leaves the loop
    where this is True."""

    def script(rank: Rank | None) -> Any:
        model = nn.Linear(5, 2).double()
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with oakum.session(model, optimizer, Points(), **{k: make() for k, make in state.items()}) as session:
            for batch in session:
                if body(session, batch, rank, model):
                    break
        return session.steps

    return script


def fit(session: Any, batch: Any, model: nn.Module) -> bool:
    session.backward(mse_loss(model(batch[0]), batch[1]))
    taken: bool = session.step()
    return taken


def test_each_sample_is_learnt_from_once_per_epoch() -> None:
    numbers = {sample[0].item(): number for number, sample in enumerate(Points().inputs)}
    learnt: Counter[int] = Counter()

    def body(session: Any, batch: Any, rank: Rank | None, model: nn.Module) -> None:
        if rank is not None:
            rank.may_die()
        counts = session._steps.iteration.num_counted
        if fit(session, batch, model) and counts:
            learnt.update(numbers[sample[0].item()] for sample in batch[0])

    Plan(random_stages(8, seed=10), spec(epochs=4), little(body)).run()
    assert learnt == Counter(dict.fromkeys(range(NUM_SAMPLES), 4))


def test_a_rank_that_joins_when_the_others_leave_their_loops_ends_with_them() -> None:
    def body(session: Any, batch: Any, rank: Any, model: nn.Module) -> bool:
        return fit(session, batch, model) and session.steps == 9

    stages = [Stage(("a", "b"), 9), Stage(("a", "b", "c"))]
    assert Plan(stages, spec(), little(body)).run() == dict.fromkeys(("a", "b", "c"), 9)


def test_one_rank_alone_may_not_leave_the_loop() -> None:
    def body(session: Any, batch: Any, rank: Any, model: nn.Module) -> bool:
        return fit(session, batch, model) and rank.name == "a" and session.steps == 3

    errors = Plan([Stage(("a", "b", "c"))], spec(), little(body)).errors()
    for error in errors.values():
        assert isinstance(error, SessionError)
        assert "1 of 3 ranks have left their loops after step 3" in str(error)


@pytest.mark.parametrize("weighted", [False, True])
def test_shares_in_parts_and_ranks_without_a_sample_change_nothing(weighted: bool) -> None:
    """Three samples a step: the parts are of one sample, and some of four ranks have none."""
    expected: dict[int, float] = {}
    found: dict[int, float] = {}

    def in_parts(losses: dict[int, float]) -> Callable[[Any, Any, Any, nn.Module], None]:
        def body(session: Any, batch: Any, rank: Rank | None, model: nn.Module) -> None:
            if rank is not None:
                rank.may_die()
            for first in range(session.num_samples):
                with session.part(first, 1):
                    inputs, targets = batch[0][first : first + 1], batch[1][first : first + 1]
                    weight = 1.0 + targets[0, 0].abs() if weighted else None
                    error = mse_loss(model(inputs), targets)
                    session.backward(error if weight is None else error * weight, weight=weight)
            if session.reduce():
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            if session.step():
                losses[session.steps] = session.loss

        return body

    trainer = spec(global_batch=3, epochs=1)
    alone(little(in_parts(expected)), trainer)
    stages = [Stage(("a", "b"), 3), Stage(("a", "b", "c", "d"), 9, "b"), Stage(("c", "a", "d", "e"))]
    Plan(stages, trainer, little(in_parts(found))).run()
    assert len(expected) == -(-NUM_SAMPLES // 3)
    numbers = ElasticSampler(NUM_SAMPLES, 3, 3).indices(Cursor(), range(3))
    inputs, targets = Points().inputs[numbers], Points().targets[numbers]
    errors = (inputs.sum(1, keepdim=True) * 0.1 + 0.1 - targets).square().mean(1)
    weights = 1.0 + targets[:, 0].abs() if weighted else torch.ones(3)
    assert expected[1] == pytest.approx(((errors * weights).sum() / weights.sum()).item(), rel=1e-9)
    assert found == pytest.approx(expected, rel=1e-9)


def _late(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(mse_loss(model(batch[0]), batch[1]))
    session.reduce()
    session.backward(mse_loss(model(batch[0]), batch[1]))


def _beyond(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    with session.part(4, 5):
        pass


def _skip(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(model(batch[0]).mean())


def _twice(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    fit(session, batch, model)
    session.step()


def _no_backward(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.step()


def _old_model(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(nn.Linear(5, 2).double()(batch[0]).mean())
    session.step()


def _no_gradient(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(model(batch[0]).mean().detach())


def _not_a_mean(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(model(batch[0]))


def _replaced(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(model(batch[0]).mean())
    model.weight = nn.Parameter(torch.ones(2, 5).double())
    session.step()


def _own_step(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(model(batch[0]).mean())
    session._steps.optimizer.members[0].step()


def _again(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    for _ in session:
        pass


def _foreign(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(model(batch[0]).mean(), torch.optim.SGD(model.parameters(), lr=0.1))


def _half_weighted(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(model(batch[0]).sum(), weight=4)
    session.backward(model(batch[0]).mean())


@each(
    ("body", "message"),
    [
        (_skip, "next batch without session.step()"),
        (_twice, r"session.step\(\) after session.step\(\) in the same iteration"),
        (_no_backward, r"without session.backward\(loss\)"),
        (_old_model, "the loss is that of another model"),
        (_no_gradient, "does not depend on any parameter"),
        (_not_a_mean, r"a Tensor of shape \(8, 2\): give the mean loss"),
        (_replaced, "parameters were replaced"),
        (_own_step, r"calls optimizer.step\(\) itself"),
        (_again, "iterated a second time"),
        (_late, r"session.backward\(\) after session.reduce\(\)"),
        (_beyond, r"session.part\(4, 5\) of a batch of 8 samples"),
        (_foreign, "this SGD is not the session's"),
        (_half_weighted, "a weight in one call of this iteration and none in another"),
    ],
)
def test_a_loop_that_goes_wrong_is_told_what_to_change(body: Any, message: str) -> None:
    with pytest.raises(SessionError, match=message):
        alone(little(body))


def test_a_step_after_the_end_and_a_batch_of_another_size_are_refused() -> None:
    with oakum.session(
        model := nn.Linear(5, 2).double(), torch.optim.SGD(model.parameters(), lr=0.1), Points(), batch_size=53
    ) as session:
        for batch in session:
            fit(session, batch, model)
        with pytest.raises(SessionError, match="after the end of training"):
            session.step()
    with pytest.raises(SessionError, match="batch_size"):
        oakum.session(model, torch.optim.SGD(model.parameters(), lr=0.1), Points())


def test_an_exception_in_the_loop_is_passed_on_and_the_optimizer_is_free_again() -> None:
    model = nn.Linear(5, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for error in (ValueError, KeyboardInterrupt):

        def train(error: type[BaseException] = error) -> None:
            with oakum.session(model, optimizer, Points(), batch_size=8) as session:
                for batch in session:
                    session.backward(mse_loss(model(batch[0]), batch[1]))
                    raise error

        with pytest.raises(error):
            train()
        optimizer.step()


def test_each_optimizer_has_its_own_losses_and_steps_as_in_a_plain_loop() -> None:
    found: dict[int, float] = {}
    losses: dict[int, float] = {}
    alone(gan(found), spec(epochs=2))
    maker, judge = nn.Linear(5, 5).double(), nn.Linear(5, 1).double()
    with torch.no_grad():
        for p in (*maker.parameters(), *judge.parameters()):
            p.copy_(torch.linspace(-0.4, 0.5, p.numel(), dtype=p.dtype).view_as(p))
    making = torch.optim.Adam(maker.parameters(), lr=0.01)
    judging = torch.optim.SGD(judge.parameters(), lr=0.05, momentum=0.9)
    sampler, cursor, doubt = ElasticSampler(NUM_SAMPLES, BATCH, 3), Cursor(), binary_cross_entropy_with_logits
    while cursor.epoch < 2:
        size = sampler.batch_size(cursor)
        inputs = Points().inputs[sampler.indices(cursor, range(size))]
        ones, zeros = torch.ones(size, 1).double(), torch.zeros(size, 1).double()
        made = maker(inputs.flip(1))
        of_judge = doubt(judge(inputs), ones) + doubt(judge(made.detach()), zeros)
        of_maker = doubt(judge(made), ones)
        of_both = torch.autograd.grad(of_judge, list(judge.parameters()))
        for p, gradient in zip(
            maker.parameters(), torch.autograd.grad(of_maker, [*maker.parameters()]), strict=True
        ):
            p.grad = gradient
        for p, gradient in zip(judge.parameters(), of_both, strict=True):
            p.grad = gradient
        judging.step()
        if cursor.step % 3 != 2:
            making.step()
        cursor = cursor.after(size, NUM_SAMPLES)
        losses[cursor.step] = (of_judge + of_maker).item()
    assert found == pytest.approx(losses, rel=1e-9)


def test_a_loop_that_begins_to_draw_draws_for_its_samples_from_the_first_number_on() -> None:
    """Nothing watches for draws after a step without any. The batch in which they begin comes again."""

    def results(*, draws_from_the_start: bool) -> tuple[list[float], list[bool]]:
        losses, taken = [], []

        def body(session: Any, batch: Any, rank: Rank | None, model: nn.Module) -> None:
            hidden = dropout(batch[0], 0.4) if session.steps >= 4 else batch[0]
            if draws_from_the_start:
                torch.rand(())
            session.backward(mse_loss(model(hidden), batch[1]))
            taken.append(session.step())
            if taken[-1]:
                losses.append(session.loss)

        alone(little(body))
        return losses, taken

    expected, always = results(draws_from_the_start=True)
    found, taken = results(draws_from_the_start=False)
    assert found == expected
    assert all(always)
    assert [number for number, one in enumerate(taken) if not one] == [4]


def test_ranks_that_part_by_their_own_shares_are_told_of() -> None:
    """A scheduler that each rank steps by its own loss, and a buffer that each writes its samples into."""

    def script(rank: Rank | None, *, by_share: bool) -> None:
        model = nn.Linear(5, 2).double()
        model.register_buffer("centre", torch.zeros(5, dtype=torch.float64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        with oakum.session(model, optimizer, Points(), state=[schedule]) as session:
            for inputs, targets in session:
                loss = mse_loss(model(inputs), targets)
                session.backward(loss)
                if session.step():
                    schedule.step(loss.item() if by_share else session.loss)
                    if by_share:
                        model.get_buffer("centre").lerp_(inputs.mean(0), 0.1)

    def warned(*, by_share: bool) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Plan([Stage(("a", "b"))], spec(epochs=1), partial(script, by_share=by_share)).run()
        return [str(one.message) for one in caught if "the ranks differ" in str(one.message)]

    assert not warned(by_share=False)
    assert "after step 1 the ranks differ in the model's buffers, state state.0" in warned(by_share=True)[0]
