"""Scripts with loops of their own: what they compute does not depend on ranks that come, leave and are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import oakum
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import SessionError
from oakum_worker.session.hosts import HOST, Alone, Asked
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.sampler import ElasticSampler
from oakum_worker.step.training_loop import TrainingLoop
from session_ranks import Plan, Rank, Stage, random_stages
from training_ranks import NUM_SAMPLES, Points

EPOCHS = 12
BATCH = 8
STEPS_PER_EPOCH = -(-NUM_SAMPLES // BATCH)


def spec(**changes: Any) -> TrainerSpec:
    fields = {"name": "loop", "script": "loop.py", "global_batch": BATCH, "epochs": EPOCHS, "seed": 3}
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


class Best:
    """The best validation so far, and how often it was not beaten since."""

    def __init__(self) -> None:
        self.loss, self.since = float("inf"), 0

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: Any) -> None:
        vars(self).update(state)

    def is_over(self, loss: float, patience: int) -> bool:
        self.loss, self.since = (loss, 0) if loss < self.loss else (self.loss, self.since + 1)
        return self.since >= patience


class Record:
    """What the ranks of a trainer told, by step."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.validations: dict[int, float] = {}
        self.seen: dict[int, list[float]] = {}
        self.lost = 0


def regression(record: Record, *, numbers: bool = False) -> Callable[[Rank | None], Any]:
    """A script with a scheduler, an average, a gradient penalty, buffers and validation every third step."""

    def script(rank: Rank | None) -> Any:
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        points = Points()
        held_out = points.inputs[:9], points.targets[:9]
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        with torch.no_grad():
            for number, p in enumerate(model.parameters()):
                p.copy_(torch.linspace(-0.5, 0.5, p.numel(), dtype=p.dtype).view_as(p) * (number + 1) / 2)
        average.module.load_state_dict(model.state_dict())
        with oakum.session(model, optimizer, points, state=[scheduler, average]) as session:
            for inputs, targets in session:
                inputs = inputs.clone().requires_grad_()
                out = model(inputs)
                if rank is not None:
                    rank.may_die()
                (slope,) = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
                session.backward(mse_loss(out, targets) + 0.1 * slope.square().sum(1).mean())
                taken = session.step()
                scheduler.step()  # also where the step was not taken, as a careless script does
                average.update_parameters(model)
                if not taken:
                    record.lost += 1
                    continue
                record.losses[session.steps] = session.loss
                if session.steps % 3 == 0:
                    with torch.no_grad():
                        record.validations[session.steps] = mse_loss(average(held_out[0]), held_out[1]).item()
        return [p.detach().clone() for p in (*model.parameters(), *average.parameters())]

    return script


def test_a_loop_of_ones_own_ends_alike_through_random_disturbances() -> None:
    expected, found = Record(), Record()
    weights = alone(regression(expected))
    stages = random_stages(24, seed=5)
    results = Plan(stages, spec(), regression(found)).run()
    assert sum(stage.victim is not None for stage in stages) >= 8
    assert found.lost >= 8
    assert len(expected.losses) == EPOCHS * STEPS_PER_EPOCH
    assert found.losses == pytest.approx(expected.losses, rel=1e-9)
    assert found.validations == pytest.approx(expected.validations, rel=1e-9)
    for name in stages[-1].members:
        for one, other in zip(results[name], weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def gan(record: Record) -> Callable[[Rank | None], Any]:
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
                    record.losses[session.steps] = session.loss
        return None

    return script


def test_two_optimizers_end_alike_through_disturbances() -> None:
    expected, found = Record(), Record()
    alone(gan(expected), spec(epochs=4))
    Plan(random_stages(8, seed=2), spec(epochs=4), gan(found)).run()
    assert len(expected.losses) == 4 * STEPS_PER_EPOCH
    assert found.losses == pytest.approx(expected.losses, rel=1e-9)


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
        counts = session._open.num_counted
        if fit(session, batch, model) and counts:
            learnt.update(numbers[sample[0].item()] for sample in batch[0])

    Plan(random_stages(10, seed=9), spec(), little(body)).run()
    assert learnt == Counter(dict.fromkeys(range(NUM_SAMPLES), EPOCHS))


def test_all_ranks_that_leave_the_loop_early_end_the_training() -> None:
    def body(session: Any, batch: Any, rank: Any, model: nn.Module) -> bool:
        return fit(session, batch, model) and session.steps == 9

    assert alone(little(body)) == 9
    assert Plan([Stage(("a", "b", "c"))], spec(), little(body)).run() == {"a": 9, "b": 9, "c": 9}


def test_a_rank_that_joins_when_the_others_leave_their_loops_ends_with_them() -> None:
    def body(session: Any, batch: Any, rank: Any, model: nn.Module) -> bool:
        return fit(session, batch, model) and session.steps == 9

    assert Plan([Stage(("a", "b"), 9), Stage(("a", "b", "c"))], spec(), little(body)).run() == {
        "a": 9,
        "b": 9,
        "c": 9,
    }


def test_patience_in_state_goes_on_on_a_rank_that_joins() -> None:
    ended: dict[str, int] = {}

    def script(rank: Rank | None) -> None:
        best = Best()

        def body(session: Any, batch: Any, rank: Any, model: nn.Module) -> bool:
            return fit(session, batch, model) and best.is_over(1.0, patience=11)

        ended[rank.name if rank else "alone"] = little(body, state=lambda: best)(rank)

    alone(script)
    Plan([Stage(("a", "b"), 5), Stage(("b", "c"), 3), Stage(("b", "c", "d"))], spec(), script).run()
    assert ended == dict.fromkeys(("alone", "b", "c", "d"), 12)


def test_one_rank_alone_may_not_leave_the_loop() -> None:
    def body(session: Any, batch: Any, rank: Any, model: nn.Module) -> bool:
        return fit(session, batch, model) and rank.name == "a" and session.steps == 3

    errors = Plan([Stage(("a", "b", "c"))], spec(), little(body)).errors()
    for error in errors.values():
        assert isinstance(error, SessionError)
        assert "1 of 3 ranks have left their loops after step 3" in str(error)


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    expected, found = Record(), Record()
    alone(regression(expected))
    checkpoints = DurableCheckpoints(tmp_path, keep=1)

    class Saving(AloneWith):
        def turns(self, loop: TrainingLoop) -> Any:
            turns = super().turns(loop)
            order = next(turns)
            while loop.step_count < 10:
                order = turns.send((yield order))
            checkpoints.save(loop.state_dict(), loop.step_count)
            return False

        def leave(self) -> Any:
            raise KeyboardInterrupt

    token = HOST.set(Saving(spec()))
    with pytest.raises(KeyboardInterrupt):
        regression(found)(None)
    HOST.reset(token)

    def begin(loop: TrainingLoop) -> None:
        newest = checkpoints.newest()
        assert newest is not None
        state = loop.state_dict()
        checkpoints.load(newest, state)
        loop.load_state_dict(state)

    Plan([Stage(("r0", "r1", "r2"), 4, victim="r1"), Stage(("r0", "r2"))], spec(), regression(found), begin).run()
    assert found.losses == pytest.approx(expected.losses, rel=1e-9)


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

    trainer = spec(global_batch=3, epochs=2)
    alone(little(in_parts(expected)), trainer)
    stages = [Stage(("a", "b"), 3), Stage(("a", "b", "c", "d"), 9, "b"), Stage(("c", "a", "d", "e"))]
    Plan(stages, trainer, little(in_parts(found))).run()
    assert len(expected) == 2 * -(-NUM_SAMPLES // 3)
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
    session._optimizer.members[0].step()


def _again(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    for _ in session:
        pass


def _foreign(session: Any, batch: Any, rank: Any, model: nn.Module) -> None:
    session.backward(model(batch[0]).mean(), torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
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
    found, losses = Record(), {}
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
    assert found.losses == pytest.approx(losses, rel=1e-9)
