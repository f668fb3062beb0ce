"""Training that was resized and killed at random gives what undisturbed training gives, step by step.

What each step did is read from the gradients that it applied (`tasks/recording_task.py`), not from what the
service or the ranks say of it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.trainers import TrainerChange, TrainerView
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec
from running_service import TASKS, RunningService, nodes_of_fragments, small_spec, state_of
from tasks.recording_task import NUM_SAMPLES, FinishedStep
from waiting import DEADLINE_S, wait_until
from warm_processes import start_warm

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("exactness")]

EPOCHS, BATCH = 2, 24
BATCHES_PER_EPOCH = -(-NUM_SAMPLES // BATCH)
STEPS = EPOCHS * BATCHES_PER_EPOCH


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service with nodes for two of three trainers, which runs."""
    running = RunningService(tmp_path_factory.mktemp("service"), nodes=6, PYTHONPATH=str(TASKS))
    running.start()
    yield running
    running.end()


class RecordedTraining:
    """A trainer of the recording task, and what its ranks wrote down."""

    def __init__(self, name: str, folder: Path, *, gated: bool = False, **arguments: object) -> None:
        self.name = name
        self._folder = folder / name
        self._gate = folder / f"{name}.gate" if gated else None
        self._arguments = arguments | ({"gate": str(self._gate)} if self._gate else {})
        self.allow(0)

    def spec(self, **fields: object) -> TrainerSpec:
        """The trainer's spec; a durable checkpoint is too rare to help it."""
        return small_spec(
            self.name,
            entrypoint="recording_task:task",
            arguments={"folder": str(self._folder), **self._arguments},
            global_batch=BATCH,
            epochs=EPOCHS,
            checkpoint={"every_s": 3600.0},
            rehearsal=False,  # it would be recorded, and wait for the gate
            **fields,
        )

    def allow(self, steps: int) -> None:
        """Let the ranks take so many steps in all, and hold them before the next."""
        if self._gate is not None:
            written = self._gate.with_suffix(".new")
            written.write_text(str(steps), encoding="utf-8")
            written.replace(self._gate)

    def finished(self) -> list[FinishedStep]:
        """Every rank's finished steps, in the order of steps."""
        found = []
        for file in self._folder.glob("*.jsonl"):
            for line in file.read_text(encoding="utf-8").splitlines():
                record: dict[str, Any] = json.loads(line)
                kind, _ = record.pop("kind"), record.pop("pid")
                found += [FinishedStep(**record)] if kind == "FinishedStep" else []
        return sorted(found, key=lambda finished: finished.step)

    def num_finished(self) -> int:
        """How many steps some rank has finished."""
        return max((finished.step + 1 for finished in self.finished()), default=0)

    def losses(self) -> list[float]:
        """Each step's loss; every rank that finished it agrees on loss and samples, or the test fails."""
        by_step: dict[int, FinishedStep] = {}
        for finished in self.finished():
            first = by_step.setdefault(finished.step, finished)
            assert finished.samples == first.samples
            assert finished.loss == pytest.approx(first.loss, abs=1e-9)
        assert list(by_step) == list(range(STEPS))
        return [by_step[step].loss for step in range(STEPS)]

    def samples_of_epoch(self, epoch: int) -> list[int]:
        """The samples of the epoch's finished steps, sorted, each as often as it was part of one."""
        first = epoch * BATCHES_PER_EPOCH
        by_step = {finished.step: finished.samples for finished in self.finished()}
        return sorted(sample for step in range(first, first + BATCHES_PER_EPOCH) for sample in by_step[step])

    def sizes(self) -> list[int]:
        """World sizes in the order in which steps were finished at them."""
        sizes: list[int] = []
        for finished in self.finished():
            if sizes[-1:] != [finished.world_size]:
                sizes.append(finished.world_size)
        return sizes

    def weights(self) -> dict[str, torch.Tensor]:
        """The model at the end."""
        loaded: dict[str, torch.Tensor] = torch.load(self._folder / f"weights-{STEPS}.pt", weights_only=True)
        return loaded


class Disturber:
    """Resizes a gated training and kills its processes; a seed repeats the choices."""

    def __init__(
        self, service: RunningService, client: OakumClient, training: RecordedTraining, seed: int
    ) -> None:
        self._service = service
        self._client = client
        self._training = training
        self._random = random.Random(seed)
        self._allowed = 0
        self.killed: list[str] = []

    def resize(self, nodes: int) -> None:
        """Ask for a size and wait until a generation of that size has formed.

        A step is let through only where a generation waits for a step boundary: how long processes take to start
        decides nothing.
        """
        self._client.change(self._training.name, TrainerChange(max_nodes=nodes))

        def settled() -> bool:
            view = self._client.trainer(self._training.name)
            formed = self._newest_formed()
            if view.generation > formed and self._training.num_finished() >= self._allowed:
                self._let_through(1)
            return len(view.nodes) == nodes and view.generation == formed

        wait_until(f"a generation of {nodes} has formed", settled)

    def _newest_formed(self) -> int:
        events = self._client.recent_events(500).events
        return max(
            (
                e.data["generation"]
                for e in events
                if e.kind == "generation.formed" and e.subject == self._training.name
            ),
            default=0,
        )

    def train(self, steps: int, *, kill: bool) -> None:
        """Let so many steps pass; somewhere in the first half, `kill -9` a rank or an agent of a member."""
        self._let_through(steps)
        if kill:
            self._wait_for(self._allowed - steps + self._random.randint(1, steps // 2))
            self._kill_a_member(self._client.trainer(self._training.name))
        self._wait_for(self._allowed)

    def train_to_the_end(self) -> None:
        """Open the gate for good and wait until the trainer has finished."""
        self._training.allow(STEPS)
        wait_until("it finishes", lambda: state_of(self._client, self._training.name) is TrainerState.FINISHED)

    def _let_through(self, steps: int) -> None:
        self._allowed += steps
        self._training.allow(self._allowed)

    def _wait_for(self, steps: int) -> None:
        wait_until(f"{steps} steps have finished", lambda: self._training.num_finished() >= steps)

    def _kill_a_member(self, view: TrainerView) -> None:
        nodes = nodes_of_fragments(self._client)
        victim = self._random.choice(view.nodes)
        what, processes = self._random.choice([("rank", self._service.ranks()), ("agent", self._service.agents())])
        fragment = next(fragment for fragment in processes if nodes.get(fragment) == victim)
        processes[fragment].kill()
        self.killed.append(f"{what} {view.nodes.index(victim)} of {len(view.nodes)}")


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Over all weights."""
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours.keys() | theirs.keys())


def in_order(wanted: list[int], seen: list[int]) -> bool:
    """Whether `wanted` is a subsequence of `seen`."""
    rest = iter(seen)
    return all(size in rest for size in wanted)


def test_training_resized_and_killed_equals_training_alone_in_one_process(
    service: RunningService, tmp_path: Path
) -> None:
    """4, 2, 3, 1, 4 ranks in the middle of two epochs, each time losing a process to `kill -9` while it steps."""
    alone = RecordedTraining("alone", tmp_path)
    elastic = RecordedTraining("elastic", tmp_path, gated=True, step_s=0.02)
    spec_file = tmp_path / "alone.json"
    spec_file.write_text(alone.spec().model_dump_json(), encoding="utf-8")
    with (tmp_path / "alone.log").open("wb") as log:
        reference = start_warm("oakum_worker", "run", "--spec", str(spec_file), environment=os.environ, output=log)
    client = service.client()
    client.submit(elastic.spec(max_nodes=4))
    disturber = Disturber(service, client, elastic, seed=2)
    for size in (4, 2, 3, 1, 4):
        disturber.resize(size)
        disturber.train(8, kill=size > 1)
    disturber.train_to_the_end()
    assert reference.wait(timeout=DEADLINE_S) == 0

    assert len(disturber.killed) == 4
    assert in_order([4, 2, 3, 1, 4], elastic.sizes()), disturber.killed
    assert elastic.losses() == pytest.approx(alone.losses(), abs=1e-9), disturber.killed
    assert largest_difference(elastic.weights(), alone.weights()) < 1e-9
    for epoch in range(EPOCHS):
        assert elastic.samples_of_epoch(epoch) == list(range(NUM_SAMPLES))


def test_a_lost_rank_replaced_at_the_same_size_changes_no_bit(service: RunningService, tmp_path: Path) -> None:
    """A trainer that runs on exactly three nodes restarts from the checkpoint that the survivors write. Its
    samples are read ahead by other processes, the other trainer's by its ranks."""
    undisturbed = RecordedTraining("undisturbed", tmp_path, dropout=0.1)
    killed = RecordedTraining("killed", tmp_path, gated=True, step_s=0.03, dropout=0.1)
    killed.allow(20)
    client = service.client()
    for training, workers in ((killed, 2), (undisturbed, 0)):
        client.submit(training.spec(min_nodes=3, max_nodes=3, workers=workers))
    wait_until("it is in the middle of its first epoch", lambda: killed.num_finished() >= 20)
    nodes = nodes_of_fragments(client)
    victim = client.trainer("killed").nodes[1]
    service.ranks()[next(fragment for fragment, node in nodes.items() if node == victim)].kill()
    killed.allow(STEPS)
    for training in (killed, undisturbed):
        wait_until("both finish", lambda name=training.name: state_of(client, name) is TrainerState.FINISHED)

    assert client.trainer("killed").rescales > 0
    assert killed.sizes() == undisturbed.sizes() == [3]
    assert killed.losses() == undisturbed.losses()
    assert largest_difference(killed.weights(), undisturbed.weights()) == 0.0
