"""Pipeline training whose ranks come, go and die, against one process that nobody disturbed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from oakum_worker.chain import Chain
from oakum_worker.task import Task
from oakum_worker.trainer import TrainingLoop
from pipeline_ranks import build_transformer, sentences
from sharded_ranks import Act, Outcome, Script, play
from training_ranks import NUM_SAMPLES, Points, build_spec

STEPS = 14
"""Of two epochs of 53 samples in batches of 8: the last batch of an epoch has 5."""
WIDTH = 6


class Block(nn.Module):
    """A layer that drops, normalises and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return hidden + self.drop(torch.tanh(self.mix(self.norm(hidden))))


class Deep(nn.Module):
    """Eight layers; the first and the last share a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(5, WIDTH, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.out = Readout(self.into)


class Readout(nn.Module):
    """The first layer's matrix again, and one of its own."""

    def __init__(self, tied: nn.Linear) -> None:
        super().__init__()
        self.weight = tied.weight
        self.own = nn.Linear(5, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.own(hidden @ self.weight)


def build_deep_task() -> Task:
    torch.manual_seed(2)
    model = Deep().double()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, amsgrad=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.1], total_steps=100)
    chain = Chain(
        layers=[model.into, *model.blocks, model.out],
        inputs=lambda batch: batch[0],
        loss=lambda output, batch: mse_loss(output, batch[1]),
    )
    return Task(model=model, dataset=Points(), loss=chain, optimizer=optimizer, scheduler=schedule, chain=chain)


def spec(schedule: str, **changes: Any) -> dict[str, Any]:
    pipeline = {"stages": 4, "schedule": schedule, "micro_batch": 1}
    return {
        "parallel": {"pipeline": pipeline},
        "clip_grad_norm": 0.5,
        "checkpoint": {"hot_every_steps": 4},
    } | changes


def undisturbed(task: Callable[[], Task] = build_deep_task) -> dict[int, Any]:
    """Losses of plain training of the same task in one process."""
    loop = TrainingLoop(task(), build_spec(clip_grad_norm=0.5))
    return {step: pytest.approx(loop.step().loss, rel=1e-9) for step in range(1, STEPS + 1)}


class Sentences(Dataset):
    """53 sentences."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return sentences(NUM_SAMPLES)[index]


def build_transformer_task() -> Task:
    """Ten layers, tied at their ends, with dropout."""
    chain = build_transformer(dropout=0.1)
    assert isinstance(chain.layers, nn.ModuleList)
    optimizer = torch.optim.AdamW(chain.layers.parameters(), lr=0.01)
    return Task(model=chain.layers, dataset=Sentences(), loss=chain, optimizer=optimizer, chain=chain)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Sums over everything that the model has."""
    return {name: float(value.double().sum()) for name, value in model.state_dict().items() if "seen" not in name}


def build_evaluated_task() -> Task:
    task = build_deep_task()
    task.evaluate = evaluate
    return task


def losses_of(outcomes: list[Outcome | None]) -> dict[int, float]:
    return {step: loss for outcome in outcomes if outcome is not None for step, loss in outcome.losses}


@pytest.mark.parametrize("schedule", ["1f1b", "chimera", "message-driven"])
def test_the_ranks_of_a_pipeline_come_and_go_and_no_loss_changes(tmp_path: Path, schedule: str) -> None:
    acts = (Act((0, 1, 2, 3), 3), Act((0, 1, 2), 6), Act((1,), 8), Act((1, 3, 0, 4, 5), STEPS))
    outcomes = play(Script(acts, str(tmp_path), build_deep_task, spec(schedule)))
    assert losses_of(outcomes) == undisturbed()
    assert all(not outcome.warnings and not any(outcome.redone) for outcome in outcomes if outcome is not None)


@pytest.mark.parametrize(("schedule", "stages"), [("chimera", 8), ("zero-bubble", 4), ("message-driven", 8)])
def test_a_transformer_goes_from_8_ranks_to_6_to_4_and_back_and_no_loss_changes(
    tmp_path: Path, schedule: str, stages: int
) -> None:
    eight = tuple(range(8))
    acts = (Act(eight, 3), Act((0, 2, 3, 4, 6, 7), 6), Act((7, 2, 4, 3), 9), Act((3, 4, 8, 7, 2, 0, 5, 1), STEPS))
    pipeline = {"pipeline": {"stages": stages, "schedule": schedule, "micro_batch": 1}}
    script = Script(acts, str(tmp_path), build_transformer_task, spec(schedule, parallel=pipeline))
    outcomes = play(script)
    assert losses_of(outcomes) == undisturbed(build_transformer_task)
    assert all(not any(outcome.redone) for outcome in outcomes if outcome is not None)


def test_a_lost_stage_is_taken_from_memory_and_no_loss_changes(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2, 3), 6, dies=(2,)), Act((3, 0, 1), 9, dies=(1, 0)), Act((3, 4), STEPS))
    outcomes = play(Script(acts, str(tmp_path), build_deep_task, spec("1f1b")))
    assert losses_of(outcomes) == undisturbed()
    last = outcomes[3]
    assert last is not None
    assert last.origins[0] == "scratch"


def test_chimera_loses_no_step_with_a_rank_as_each_stage_is_on_two(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2, 3), 6, dies=(3,)), Act((2, 0, 1, 4), STEPS))
    outcomes = play(Script(acts, str(tmp_path), build_deep_task, spec("chimera")))
    assert losses_of(outcomes) == undisturbed()
    survivor = outcomes[0]
    assert survivor is not None
    assert (survivor.origins, survivor.redone) == (["scratch", "survivor"], [0, 0])


def test_a_checkpoint_of_four_stages_is_gone_on_from_by_any_number_of_ranks(tmp_path: Path) -> None:
    first = Script((Act((0, 1, 2, 3), 6),), str(tmp_path), build_deep_task, spec("chimera"), finish=True)
    play(first)
    for number in (1, 2, 3):
        copy = tmp_path / f"for-{number}"
        shutil.copytree(tmp_path / "step-6", copy / "step-6")
        script = Script((Act(tuple(range(number)), STEPS),), str(copy), build_deep_task, spec("1f1b"))
        outcomes = play(script)
        assert losses_of(outcomes) == {step: loss for step, loss in undisturbed().items() if step > 6}
        assert outcomes[0] is not None
        assert outcomes[0].origins == ["checkpoint"]


def test_rank_0_evaluates_the_whole_model_and_gives_the_other_layers_back(tmp_path: Path) -> None:
    acts = (Act((0, 1, 2, 3), 7), Act((0, 1), STEPS))
    outcomes = play(Script(acts, str(tmp_path), build_evaluated_task, spec("chimera"), finish=True))
    alone = TrainingLoop(build_evaluated_task(), build_spec(clip_grad_norm=0.5))
    expected = {}
    for step in range(1, STEPS + 1):
        alone.step()
        if step in (7, STEPS):
            expected[step] = {name: pytest.approx(value) for name, value in alone.evaluate().items()}
    assert outcomes[0] is not None
    assert outcomes[0].metrics == expected
    assert losses_of(outcomes) == undisturbed()
