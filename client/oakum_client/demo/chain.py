"""The demonstration's three trainers: a stack of Boltzmann machines, and two fine-tuned from its weights."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.trainers import TrainerView
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec, read_spec
from oakum_worker.spec_options import CheckpointSpec

CHECKPOINT_EVERY_S = 1.0
"""Between two looks of the page at the weights."""


class DemoRole(StrEnum):
    """The roles of trainers in the demonstration: the stack of Boltzmann machines, the recogniser and the
    autoencoder."""

    STACK = "stack"
    RECOGNISER = "recogniser"
    AUTOENCODER = "autoencoder"


SPECS = {
    DemoRole.STACK: "rbm-digits.yaml",
    DemoRole.RECOGNISER: "rbm-classifier.yaml",
    DemoRole.AUTOENCODER: "rbm-autoencoder.yaml",
}
"""File of each role's spec in the folder of examples."""


def read_specs(folder: Path, epochs: int) -> dict[DemoRole, TrainerSpec]:
    """Role -> its spec, read from the folder of examples, with frequent checkpoints; `epochs` is the length of
    fine-tuning. Raises `SpecError` where a spec is missing or wrong."""
    specs = {}
    for role, file in SPECS.items():
        changes: dict[str, object] = {"checkpoint": CheckpointSpec(every_s=CHECKPOINT_EVERY_S)}
        if role is not DemoRole.STACK:
            changes["epochs"] = epochs
        specs[role] = read_spec(folder / file).model_copy(update=changes)
    return specs


class TrainerChain:
    """Finds the demonstration's trainers by their names, and submits each missing one as soon as the trainer
    from which it begins has ended."""

    def __init__(self, specs: Mapping[DemoRole, TrainerSpec], *, anew: bool = False) -> None:
        self._specs = specs
        self._passed_over: set[str] | None = None if anew else set()
        """Ids of trainers that had ended before; None until they have been looked up."""
        self._key = uuid.uuid4().hex

    def turn(self, client: OakumClient) -> dict[DemoRole, TrainerView]:
        """Submit the missing trainers that can begin. Returns the trainers that exist, by role. Raises
        `ClientError`."""
        trainers = self._find(client)
        tuned = (DemoRole.RECOGNISER, DemoRole.AUTOENCODER)
        if all(role in trainers for role in tuned):
            return trainers
        if DemoRole.STACK not in trainers:
            trainers[DemoRole.STACK] = self._submit(client, DemoRole.STACK, self._specs[DemoRole.STACK])
        stack = trainers[DemoRole.STACK]
        if stack.state is TrainerState.FINISHED and stack.checkpoint_step is not None:
            for role in tuned:
                if role not in trainers:
                    arguments = {**self._specs[role].arguments, "begin_from": stack.checkpoint_folder}
                    spec = self._specs[role].model_copy(update={"arguments": arguments})
                    trainers[role] = self._submit(client, role, spec)
        return trainers

    def _find(self, client: OakumClient) -> dict[DemoRole, TrainerView]:
        """Role -> the newest trainer with the role's name."""
        trainers = client.trainers().trainers
        if self._passed_over is None:
            self._passed_over = {view.id for view in trainers if view.state.ended}
        by_name = {view.name: view for view in trainers if view.id not in self._passed_over}
        return {role: by_name[spec.name] for role, spec in self._specs.items() if spec.name in by_name}

    def _submit(self, client: OakumClient, role: DemoRole, spec: TrainerSpec) -> TrainerView:
        # A key of its own for each role: where the answer to a call is lost, the next turn submits nothing twice.
        return client.submit(spec, idempotency_key=f"demo-{role}-{self._key}")
