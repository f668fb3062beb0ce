"""A training whose ranks come and go, against one that nobody disturbed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.step.training_loop import TrainingLoop
from training_ranks import NUM_SAMPLES, Points, build_loop, digest, mean_squared_error, step_together

EPOCHS = 2
STEPS = 14
"""Of two epochs of 53 samples in batches of 8."""


def undisturbed() -> tuple[TrainingLoop, list[float]]:
    loop = build_loop(epochs=EPOCHS)
    losses = []
    while not loop.finished:
        losses.append(loop.step().loss)
    return loop, losses


def assert_ended_alike(loop: TrainingLoop, losses: list[float]) -> None:
    reference, expected_losses = undisturbed()
    assert loop.finished
    assert loop.step_count == STEPS
    assert losses == pytest.approx(expected_losses, rel=1e-9)
    for found, expected in zip(loop.task.model.parameters(), reference.task.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_growing_and_shrinking_in_mid_epoch_changes_neither_losses_nor_samples() -> None:
    numbers = {sample[0].item(): number for number, sample in enumerate(Points().inputs)}
    learnt_from: list[int] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        # A loss may be computed twice: threads share the generators whose use the forward pass watches. The loop
        # learns from the loss that it passes backward.
        value = mean_squared_error(model, batch)
        learnt = [numbers[sample[0].item()] for sample in batch[0]]
        value.register_hook(lambda gradient: learnt_from.extend(learnt) if gradient else None)
        return value

    founder, second, third = (build_loop(loss=loss, seed=seed, epochs=EPOCHS, micro_batch=3) for seed in (0, 1, 2))
    losses = [founder.step().loss for _ in range(3)]
    losses += step_together([founder, second], 2, share_from=0)
    losses += step_together([second, founder, third], 6, share_from=1)
    third.join(None, 0, 1)
    while not third.finished:
        losses.append(third.step().loss)
    assert_ended_alike(third, losses)
    assert Counter(learnt_from) == Counter(dict.fromkeys(range(NUM_SAMPLES), EPOCHS))


def test_a_checkpoint_of_two_ranks_goes_on_with_three(tmp_path: Path) -> None:
    pair = [build_loop(epochs=EPOCHS) for _ in range(2)]
    losses = step_together(pair, 5)
    checkpoints = DurableCheckpoints(tmp_path, keep=1)
    checkpoints.save(pair[0].state.state_dict(), pair[0].step_count)

    trio = [build_loop(epochs=EPOCHS, seed=seed) for seed in (4, 5, 6)]
    newest = checkpoints.newest()
    assert newest is not None
    state = trio[0].state.state_dict()
    checkpoints.load(newest, state)
    trio[0].state.load_state_dict(state)
    losses += step_together(trio, STEPS - 5, share_from=0)
    assert_ended_alike(trio[2], losses)


def test_a_run_of_two_ranks_that_is_moved_to_two_others_ends_with_the_same_bits() -> None:
    stayed = [build_loop() for _ in range(2)]
    step_together(stayed, 9)
    left = [build_loop() for _ in range(2)]
    step_together(left, 4)
    came = [build_loop(seed=seed) for seed in (7, 8)]
    for newcomer in came:
        newcomer.state.load_state_dict(left[0].state.state_dict())
    step_together(came, 5)
    assert {digest(loop) for loop in stayed} == {digest(loop) for loop in came}


def test_more_ranks_than_samples_leave_some_without_and_change_nothing() -> None:
    reference = build_loop(global_batch=2, epochs=1)
    expected = [reference.step().loss for _ in range(4)]
    crowd = [build_loop(global_batch=2, epochs=1) for _ in range(5)]
    assert step_together(crowd, 4) == pytest.approx(expected, rel=1e-9)
