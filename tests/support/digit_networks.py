"""The networks of examples/rbm for tests of the demonstration, trained here in a few seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from oakum_client.demo.chain import SPECS, DemoRole
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.spec import TrainerSpec, read_spec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task
from running_service import EXAMPLES

EPOCHS = {DemoRole.STACK: 6, DemoRole.RECOGNISER: 60, DemoRole.AUTOENCODER: 30}


class DigitNetworks:
    """A folder of checkpoints for each role."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        torch.set_num_threads(1)

    def of(self, role: DemoRole) -> Path:
        """The role's folder of checkpoints."""
        return self.folder / role

    def train(self, role: DemoRole) -> TrainingLoop:
        """Train the role's network to its end, and save it."""
        *_, loop = self.steps(role)
        self.save(role, loop)
        return loop

    def steps(self, role: DemoRole) -> Iterator[TrainingLoop]:
        """Train the role's network; yields after each step."""
        loop = TrainingLoop(load_task(spec := self._spec(role)), spec)
        while not loop.finished:
            loop.step()
            yield loop

    def save(self, role: DemoRole, loop: TrainingLoop) -> None:
        """Write the state as the role's checkpoint of this step."""
        DurableCheckpoints(self.of(role), keep=2).save(loop.state.state_dict(), loop.step_count)

    def _spec(self, role: DemoRole) -> TrainerSpec:
        arguments = {} if role is DemoRole.STACK else {"begin_from": str(self.of(DemoRole.STACK))}
        changes = {"epochs": EPOCHS[role], "arguments": arguments}
        return read_spec(EXAMPLES / SPECS[role]).model_copy(update=changes)
