"""Tries out a script with a loop of its own: runs its first steps in this process."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from oakum_worker.session.hosts import RankHost
from oakum_worker.session.scripts import run_script
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.turns import StepOrder, Turns

_STEPS = 2


class _EnoughError(BaseException):
    """Ends the script's loop after the steps that are tried; no script's `except Exception` catches it."""


class ScriptTrial:
    """The first steps of a spec's script. The script's files and processes are its own: a trial undoes nothing."""

    def __init__(self, spec: TrainerSpec, facts: Any) -> None:
        """`facts` is filled with the sizes and the loss that the steps have shown."""
        self._spec, self._facts = spec, facts

    def run(self) -> str:
        """Run the script up to its second step, or to its end. Returns a text about the result. Raises
        `TaskError` where the script cannot train, and whatever the script raises."""
        torch.set_num_threads(self._spec.threads_per_rank)
        host = RankHost(self._spec, self._turns, _never)
        with contextlib.suppress(_EnoughError):
            run_script(self._spec, host)
        return f"{self._facts.num_parameters:,} parameters, {self._facts.num_samples:,} samples"

    def _turns(self, loop: TrainingLoop) -> Turns:
        facts = self._facts
        facts.num_samples = loop.progress.total_samples // self._spec.epochs
        facts.total_samples = loop.progress.total_samples
        facts.num_parameters = sum(parameter.numel() for parameter in loop.task.model.parameters())
        for _ in range(_STEPS):
            if loop.finished or (result := (yield StepOrder())) is None:
                return True
            facts.loss = result.loss
        raise _EnoughError


def _never() -> None:
    raise AssertionError("a trial was told to leave")
