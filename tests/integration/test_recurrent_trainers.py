"""Trainers with recurrent layers and dropout between them, on changing nodes."""

from __future__ import annotations

import warnings

import pytest
from torch import nn

from loop_verdicts import loops_are_faster
from oakum_worker.recurrent import layers
from rank_processes import Processes
from recurrent_child import build_reader_loop, run


@pytest.fixture(autouse=True)
def _loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "faster", loops_are_faster)


def test_an_lstm_with_dropout_has_the_same_losses_through_4_2_3_1_4_nodes() -> None:
    alone = build_reader_loop()
    with warnings.catch_warnings(action="error"):
        expected = [alone.step().loss for _ in range(15)]
    with Processes(4, run, (4, 2, 3, 1, 4), 3) as processes:
        found = processes.answers()
    assert found[0] == pytest.approx(expected, rel=1e-9)
    assert found[3] == [*found[0][:3], *found[0][-3:]]
    without = build_reader_loop(seed=1)
    assert [without.step().loss for _ in range(3)] != pytest.approx(expected[:3], rel=1e-3)


def test_torchs_padded_lstm_with_dropout_draws_what_the_fused_one_draws() -> None:
    fused, pieces = build_reader_loop(), build_reader_loop(nn.LSTM, micro_batch=5)
    with warnings.catch_warnings(action="error"):
        expected = [fused.step().loss for _ in range(4)]
        assert [pieces.step().loss for _ in range(4)] == pytest.approx(expected, rel=1e-9)
