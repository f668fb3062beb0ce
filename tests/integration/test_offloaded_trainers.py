"""Trainers whose optimizer's state is on the host: as with torch's optimizer, wherever the layers are."""

from __future__ import annotations

import copy
import gc
import math
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import AdamW, Optimizer

from oakum_worker.chain import Chain
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import TaskError, TrainingWarning
from oakum_worker.keeping.keeper import KeeperContext
from oakum_worker.keeping.split import SplitStateKeeper
from oakum_worker.parallel.offload import Offloaded, OffloadedAdamW, OffloadedSGD
from oakum_worker.parallel.pipeline.measuring import measure_chain
from oakum_worker.parallel.pipeline.state import StageState
from oakum_worker.protocol import Endpoint, Generation, Member
from oakum_worker.state import trainer_state as state
from oakum_worker.step.optimizer_step import OptimizerStep
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_ranks import meeting_at
from training_ranks import (
    Points,
    build_model,
    build_spec,
    digest,
    in_ranks,
    mean_squared_error,
    step_together,
)

WIDTH = 6
BUCKET = 25
"""Elements; the deep model has some 200."""


def build_task(kind: Any, **options: Any) -> Task:
    model = build_model()
    optimizer = kind(model.parameters(), **{"lr": 0.05} | options)
    return Task(
        model=model,
        dataset=Points(),
        loss=mean_squared_error,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    )


class Readout(nn.Module):
    """The first layer's matrix again, and one of its own."""

    def __init__(self, tied: nn.Linear) -> None:
        super().__init__()
        self.weight, self.own = tied.weight, nn.Linear(5, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.own(hidden @ self.weight)


def build_deep_task(kind: Any, **options: Any) -> Task:
    """Six layers in float64, of which the first and the last share a matrix; two groups of parameters."""
    torch.manual_seed(2)
    into = nn.Linear(5, WIDTH, bias=False)
    blocks = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(into, *blocks, Readout(into)).double()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}]
    optimizer = kind(groups, lr=0.01, **options)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.1], total_steps=100)
    chain = Chain(
        layers=list(model),
        inputs=lambda batch: batch[0],
        loss=lambda output, batch: mse_loss(output, batch[1]),
    )
    return Task(model=model, dataset=Points(), loss=chain, optimizer=optimizer, scheduler=schedule, chain=chain)


def build_stages(stages: int, task: Task | None = None, **changes: Any) -> TrainingLoop:
    """Build the training loop of a rank of a pipeline trainer."""
    pipeline = {"stages": stages, "schedule": "1f1b", "micro_batch": 1}
    spec = build_spec(parallel={"pipeline": pipeline}, checkpoint={"hot_every_steps": 1}, **changes)
    return TrainingLoop(task or build_deep_task(OffloadedAdamW, bucket_elements=BUCKET), spec)


def alone(num_steps: int, **changes: Any) -> tuple[list[float], TrainingLoop]:
    """Losses of the deep task with torch's AdamW in one process, and what it has trained."""
    loop = TrainingLoop(build_deep_task(AdamW), build_spec(**changes))
    return [loop.step().loss for _ in range(num_steps)], loop


@pytest.mark.parametrize(("theirs", "momentum"), [(AdamW, False), (torch.optim.SGD, True)])
def test_a_trainer_takes_the_steps_that_it_takes_with_torchs_optimizer(theirs: Any, momentum: bool) -> None:
    ours: Any = OffloadedSGD if momentum else OffloadedAdamW
    options: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1} if momentum else {"eps": 1e-3}
    spec = build_spec(clip_grad_norm=0.5, warm_up={"epochs": 1}, **{"lars": {}} if momentum else {})
    expected = TrainingLoop(build_task(theirs, **options), spec)
    losses = [expected.step().loss for _ in range(9)]
    found = [TrainingLoop(build_task(ours, bucket_elements=9, **options), spec) for _ in range(3)]
    together = [*step_together(found[:2], 3), *step_together(found, 3, share_from=1)]
    found[2].join(None, 0, 1)
    assert [*together, *(found[2].step().loss for _ in range(3))] == pytest.approx(losses, rel=1e-9)
    assert digest(found[0]) == digest(found[1])
    torch.testing.assert_close(
        list(found[2].task.model.parameters()), list(expected.task.model.parameters()), rtol=1e-9, atol=1e-12
    )


def test_a_trainers_state_moves_to_another_process() -> None:
    first = TrainingLoop(build_task(OffloadedAdamW, bucket_elements=9), build_spec())
    for _ in range(3):
        first.step()
    other = TrainingLoop(build_task(OffloadedAdamW, bucket_elements=20), build_spec())
    other.state.load_state_dict(copy.deepcopy(first.state.state_dict()))
    assert digest(other) == digest(first)
    assert [other.step().loss for _ in range(3)] == [first.step().loss for _ in range(3)]


def test_moments_do_not_pass_through_the_parameters_device() -> None:
    loop = TrainingLoop(build_task(OffloadedAdamW), build_spec())
    loop.step()
    with torch.device("meta"):  # which holds no values, and so has none to give back
        task = build_task(OffloadedAdamW)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*meta parameter")
        state.restore(task, loop.state.state_dict(), {})
    for parameter, theirs in zip(task.model.parameters(), loop.task.model.parameters(), strict=True):
        moments = task.optimizer.state[parameter]
        assert torch.equal(moments["exp_avg"], loop.task.optimizer.state[theirs]["exp_avg"])


@dataclass(frozen=True)
class Act:
    """A generation of threads: which loops are its ranks, and how it ends."""

    members: tuple[int, ...]
    until: int
    is_broken: bool = False
    """Whether its members are not told before it ends; those that the next one lacks are lost."""


class Around:
    """A rank's process, as its keeper sees it, that follows the acts."""

    def __init__(self, number: int, acts: tuple[Act, ...]) -> None:
        self._number, self._acts = number, acts
        self.act = 0

    def successor(self, at_least: int) -> tuple[int, int | None]:
        members = self._acts[self.act + 1].members
        return self.act + 2, members.index(self._number) if self._number in members else None

    def closing(self) -> bool:
        return False

    def initial_values(self) -> dict[str, torch.Tensor]:
        return dict(build_deep_task(AdamW).model.state_dict())

    def warn(self, text: str) -> None:
        assert "are computed again" in text


def play(acts: tuple[Act, ...], folder: Path, **changes: Any) -> tuple[dict[int, float], list[TrainingLoop]]:
    """Play the acts; returns the losses by step, and every rank's loop."""
    numbers = range(1 + max(number for act in acts for number in act.members))
    loops = [build_stages(4, **changes) for _ in numbers]
    arounds = [Around(number, acts) for number in numbers]
    checkpoints = DurableCheckpoints(folder, keep=1)
    keepers = [_keeper(loop, checkpoints, around) for loop, around in zip(loops, arounds, strict=True)]
    losses: dict[int, float] = {}
    for index, act in enumerate(acts):
        generation = Generation(number=index + 1, members=tuple(_member(number) for number in act.members))
        store = dist.HashStore()

        def run(
            group: dist.ProcessGroup | None,
            rank: int,
            index: int = index,
            act: Act = act,
            generation: Generation = generation,
            store: dist.Store = store,
        ) -> None:
            loop, keeper = loops[act.members[rank]], keepers[act.members[rank]]
            arounds[act.members[rank]].act = index
            loop.join(group, rank, len(act.members), subgroups=meeting_at(store, rank))
            keeper.begin(generation, rank)
            while loop.step_count < act.until:
                result = loop.step()
                losses[result.step] = result.loss
                keeper.after_step(durable=False)
                keeper.settle()
            if not act.is_broken and index + 1 < len(acts):
                keeper.before_switch(generation, rank)

        in_ranks(len(act.members), run)
    return losses, loops


def _keeper(loop: TrainingLoop, checkpoints: DurableCheckpoints, around: Around) -> SplitStateKeeper:
    keeper = loop.assembly.make_keeper(KeeperContext(loop.state, loop._spec, checkpoints, around))
    assert isinstance(keeper, SplitStateKeeper)
    return keeper


def _member(number: int) -> Member:
    return Member(fragment=f"f{number}", node=f"n{number}", ranks=(Endpoint(host="h", port=1),))


@pytest.mark.parametrize("changes", [{}, {"clip_grad_norm": 0.1}], ids=["", "clipped"])
def test_stages_and_their_moments_go_from_4_ranks_to_2_to_a_survivor_and_no_loss_changes(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    acts = (Act((0, 1, 2, 3), 3), Act((2, 0), 6, is_broken=True), Act((0,), 8))
    losses, loops = play(acts, tmp_path, **changes)
    expected, reference = alone(8, **changes)
    assert losses == dict(enumerate((pytest.approx(loss, rel=1e-9) for loss in expected), 1))
    weights = dict(reference.task.model.named_parameters())
    for name, parameter in loops[0].task.model.named_parameters():
        torch.testing.assert_close(parameter, weights[name], rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::oakum_worker.errors.TrainingWarning")
@pytest.mark.parametrize("changes", [{}, {"clip_grad_norm": 0.1}], ids=["", "clipped"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_of_one_stage_that_is_not_finite_changes_nothing_on_any_rank(
    tmp_path: Path, value: float, changes: dict[str, Any]
) -> None:
    """Two stages with a tied matrix, and a spare rank."""
    store, loops = dist.HashStore(), [build_stages(2, **changes) for _ in range(3)]

    def run(group: dist.ProcessGroup, rank: int) -> tuple[list[bool], torch.Tensor]:
        loop = loops[rank]
        optimizer = loop.task.optimizer
        assert isinstance(optimizer, Offloaded)
        loop.join(group, rank, 3, subgroups=meeting_at(store, rank))
        keeper = _keeper(loop, DurableCheckpoints(tmp_path, keep=1), Around(rank, ()))
        keeper.begin(Generation(number=1, members=tuple(map(_member, range(3)))), rank)
        keeper.settle()
        loop.step()
        here = [p for p in loop.task.model.parameters() if not p.is_meta]
        before = copy.deepcopy([here, optimizer.state_dict()["state"]])
        # The first stage's own layer: it has no other holder.
        injected = loop.task.model[1][1].weight
        handle = injected.register_hook(lambda g: g * value) if not injected.is_meta else None
        loop.step()
        torch.testing.assert_close([here, optimizer.state_dict()["state"]], before, rtol=0, atol=0)
        told = [optimizer.overflowed]
        if handle is not None:
            handle.remove()
        loop.step()
        return [*told, optimizer.overflowed], loop.task.model[0].weight.detach()

    (first, ours), (second, theirs), (spare, _) = in_ranks(3, run)
    assert [first, second, spare] == [[True, False]] * 3
    assert not theirs.is_meta
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, build_deep_task(AdamW).model[0].weight)


def test_a_new_layout_lets_go_of_the_old_ones_parameters_and_moments() -> None:
    loop = build_stages(2)
    assert isinstance(loop.assembly.state, StageState)
    loop.step()
    live = [weakref.ref(p.untyped_storage()) for p in loop.task.model.parameters()]
    live += [weakref.ref(m["exp_avg"].untyped_storage()) for m in loop.task.optimizer.state.values()]
    assert all(storage() is not None for storage in live)
    loop.join(None, 0, 1)
    loop.assembly.state.lay_out(None, 0, 1, lambda document: [document])
    gc.collect()
    assert [storage() for storage in live if storage() is not None] == []


def test_only_a_bucket_is_charged_to_the_device() -> None:
    for bucket, expected in ((BUCKET, 4 * 8 * BUCKET), (10**6, None)):
        task = build_deep_task(OffloadedAdamW, bucket_elements=bucket)
        assert task.chain is not None
        assert isinstance(task.optimizer, Offloaded)
        largest_group = max(sum(p.numel() for p in group["params"]) for group in task.optimizer.param_groups)
        assert task.optimizer.device_bytes() == (expected or 4 * 8 * largest_group)
        layers = measure_chain(task, task.chain, [1]).layers
        tied_bytes = 8 * 5 * WIDTH  # measured with each layer that uses it
        whole_bytes = sum(layer.parameter_bytes for layer in layers) - tied_bytes
        for layer in layers:
            share = layer.parameter_bytes / whole_bytes
            assert layer.optimizer_bytes == round(share * task.optimizer.device_bytes())


def fill_gradients(optimizer: Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, value)


def test_the_user_is_told_once_of_skipped_steps_and_the_schedule_goes_on() -> None:
    task = build_task(OffloadedAdamW)
    updater = OptimizerStep(task, build_spec())
    fill_gradients(task.optimizer, math.inf)
    with pytest.warns(
        TrainingWarning, match="a gradient was infinite or NaN, so the step was skipped on all ranks"
    ):
        assert updater.update(0.0).skipped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fill_gradients(task.optimizer, math.nan)
        assert updater.update(0.0).skipped
        fill_gradients(task.optimizer, 1.0)
        assert not updater.update(0.0).skipped
    assert task.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.9**3)


def test_what_a_rank_alone_finds_does_not_decide_where_ranks_have_different_parameters() -> None:
    task = build_task(OffloadedAdamW)
    updater = OptimizerStep(task, build_spec())
    for told, skips in ((1.0, False), (math.inf, True), (math.nan, True)):
        updater.grad_norm = lambda told=told: torch.tensor(told)  # type: ignore[misc]
        fill_gradients(task.optimizer, math.inf if not skips else 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)
            assert updater.update(0.0).skipped == skips


def test_a_sharded_trainer_does_not_begin() -> None:
    with pytest.raises(TaskError, match=r"optimizer is OffloadedAdamW, .*: use torch.optim.AdamW, of whose state"):
        TrainingLoop(build_task(OffloadedAdamW), build_spec(parallel={"data": "sharded"}))
