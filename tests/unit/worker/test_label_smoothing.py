"""Label smoothing that the spec asks for, in losses that were written without it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from oakum_worker.randomness.sample_randomness import SampleRandomness
from oakum_worker.step.label_smoothing import label_smoothing

LOGITS = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 0, -100])
WEIGHT = torch.tensor([0.5, 1, 2, 3], dtype=torch.float64)


def test_a_loss_without_smoothing_is_given_the_specs() -> None:
    with label_smoothing(0.1):
        made = [F.cross_entropy(LOGITS, LABELS), nn.CrossEntropyLoss(WEIGHT, reduction="sum")(LOGITS, LABELS)]
    assert made == [
        F.cross_entropy(LOGITS, LABELS, label_smoothing=0.1),
        F.cross_entropy(LOGITS, LABELS, WEIGHT, reduction="sum", label_smoothing=0.1),
    ]


def test_a_loss_with_a_smoothing_of_its_own_keeps_it() -> None:
    with label_smoothing(0.1):
        made = [
            nn.CrossEntropyLoss(label_smoothing=0.3)(LOGITS, LABELS),
            F.cross_entropy(LOGITS, LABELS, None, None, -100, None, "mean", 0.2),
        ]
    assert made == [F.cross_entropy(LOGITS, LABELS, label_smoothing=amount) for amount in (0.3, 0.2)]


def test_other_losses_and_what_comes_afterwards_are_left_alone() -> None:
    plain = F.cross_entropy(LOGITS, LABELS)
    with label_smoothing(0.1):
        assert F.nll_loss(LOGITS.log_softmax(1), LABELS) == plain
    assert F.cross_entropy(LOGITS, LABELS) == plain


def test_no_smoothing_enters_no_mode() -> None:
    with label_smoothing(0.0):
        assert F.cross_entropy(LOGITS, LABELS) == F.cross_entropy(LOGITS, LABELS, label_smoothing=0.0)
        assert not torch.overrides._get_current_function_mode_stack()


def test_smoothing_and_draws_by_sample_go_together() -> None:
    def losses(chunk: range) -> torch.Tensor:
        with SampleRandomness(torch.device("cpu")).samples(3, chunk.start, len(chunk)) as call:

            def compute() -> torch.Tensor:
                with label_smoothing(0.1):
                    dropped = F.dropout(LOGITS[chunk.start : chunk.stop], 0.5)
                    return F.cross_entropy(dropped, LABELS[chunk.start : chunk.stop], reduction="none")

            made: torch.Tensor = call(compute)
        return made

    together = losses(range(6))
    torch.testing.assert_close(torch.cat([losses(range(4)), losses(range(4, 6))]), together)
    # Where nothing is dropped of a row of equal logits, smoothing would not show.
    assert not torch.allclose(together, F.cross_entropy(LOGITS, LABELS, reduction="none"))


def test_a_compiled_loss_is_smoothed_in_checkpoints_too_and_keeps_a_smoothing_of_its_own() -> None:
    dynamo = pytest.importorskip("torch._dynamo")

    def loss(logits: torch.Tensor) -> torch.Tensor:
        own = F.cross_entropy(logits, LABELS, None, None, -100, None, "mean", 0.3)
        return own + torch.utils.checkpoint.checkpoint(F.cross_entropy, logits, LABELS, use_reentrant=False)

    with label_smoothing(0.1):
        made = torch.compile(loss, backend="aot_eager")(LOGITS.clone().requires_grad_())
    dynamo.reset()
    expected = sum(F.cross_entropy(LOGITS, LABELS, label_smoothing=amount) for amount in (0.3, 0.1))
    torch.testing.assert_close(made.detach(), expected)
