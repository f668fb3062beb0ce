"""A cluster, its foreground jobs and our agents in virtual time, under the real control loop.

Foreground jobs take nodes as a scripted scheduler has it, and whoever trains there is gone at once. An agent is
ready some seconds after its launch, forms each generation that names it, and trains at a given rate. The
controller takes its turns one after the other, as its threads would, each at the time of the virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from sqlalchemy import select

from api_under_test import FakeScheduler
from oakum_service.change_signal import ChangeSignal
from oakum_service.config import Settings
from oakum_service.control.controller import Controller
from oakum_service.control.new_trainers import add_trainer
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.documents.slots import slot_name, slots_in
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.states import NodeState
from oakum_worker.protocol import Endpoint, FragmentReport, Phase, TrainingProgress
from oakum_worker.spec import TrainerSpec

Fill = Callable[[Sequence[int]], Sequence[int]]
"""The idle nodes in the order in which foreground jobs take them."""


@dataclass
class _Job:
    ends_at: float
    nodes: tuple[int, ...]


class VirtualSite:
    """Of `num_nodes` nodes short foreground jobs, a few of them large, keep about `busy` busy on average."""

    def __init__(
        self,
        sessions: Sessions,
        folder: Path,
        *,
        num_nodes: int,
        busy: int,
        fill: Fill = sorted,
        start_up_s: float = 6.0,
        samples_per_s: float = 500.0,
        slots: int = 1,
        **settings: object,
    ) -> None:
        """With `slots` above 1 nodes are given in parts; jobs then take slots."""
        self.now = 1_800_000_000.0
        self.sessions = sessions
        self._fill, self._start_up_s, self._samples_per_s = fill, start_up_s, samples_per_s
        self._random = Random(7)
        nodes = [f"node{number:03}" for number in range(1, num_nodes + 1)]
        self._names = [slot_name(node, slot) for node in nodes for slot in range(slots)] if slots > 1 else nodes
        self._busy = busy
        self._jobs: dict[str, _Job] = {}
        self._num_jobs = 0
        self.scheduler = FakeScheduler(nodes=())
        self.training_node_s: dict[str, float] = {}
        """Trainer -> node-seconds in a formed generation."""
        self.first_trained_at: dict[str, float] = {}
        self.launches: dict[str, int] = {}
        self._samples: dict[str, float] = {}
        made = Settings(data_dir=folder, learn_curves=False, debounce_s=0.0, **settings)
        configs = FragmentConfigs(made, b"k" * 32, "http://service.test", grace_s=5.0)
        lease = LeaseHolder(sessions, alone=True)
        assert lease.acquire()
        self.controller = Controller(
            made, sessions, sessions, self.scheduler, configs, lease, ChangeSignal(), ChangeSignal()
        )

    def time(self) -> float:
        """The virtual clock, for `time.time`."""
        return self.now

    def submit(self, name: str, **fields: object) -> None:
        required = {"name": name, "entrypoint": "a:b", "global_batch": 100, "epochs": 10**6}
        with self.sessions.begin() as session:
            add_trainer(session, TrainerSpec.model_validate(required | fields), "ulla")
        self.now += 0.001

    def begin(self) -> None:
        """Run foreground jobs for 120 s without a controller, then begin the controller."""
        for _ in range(120):
            self._turn_jobs()
            self.now += 1.0
        self._show_nodes()
        self.controller._begin()

    def run(self, seconds: int, on_turn: Callable[[], None] = lambda: None) -> None:
        """Simulate `seconds` seconds; in each, nodes change, agents report, and the controller observes and
        plans."""
        for _ in range(seconds):
            self._turn_jobs()
            self._show_nodes()
            self._turn_agents()
            self.controller._observe_and_decide()
            self.controller._plan_and_execute()
            on_turn()
            self.now += 1.0

    def sizes(self) -> dict[str, int]:
        """Trainer -> nodes that its fragments are on."""
        with self.sessions.begin() as session:
            rows = session.execute(
                select(Trainer.name)
                .join(Fragment, Fragment.trainer_id == Trainer.id)
                .where(Fragment.state != FragmentState.ENDED, Fragment.released.is_(False))
            ).scalars()
            names = list(rows)
        return {name: names.count(name) for name in names}

    def _turn_jobs(self) -> None:
        self._jobs = {id_: job for id_, job in self._jobs.items() if job.ends_at > self.now}
        # A job has 9 nodes and 6.5 s on average.
        for _ in range(sum(self._random.random() < self._busy / (4 * 9 * 6.5) for _ in range(4))):
            taken = {node for job in self._jobs.values() for node in job.nodes}
            idle = self._fill([node for node in range(len(self._names)) if node not in taken])
            nodes = tuple(idle[: int(2 ** self._random.uniform(0, 5))])
            self._num_jobs += 1
            self._jobs[f"job-{self._num_jobs}"] = _Job(self.now + self._random.uniform(3, 10), nodes)

    def _show_nodes(self) -> None:
        job_of = {node: id_ for id_, job in self._jobs.items() for node in job.nodes}
        self.scheduler.nodes = tuple(
            Node(
                name,
                NodeState.FOREGROUND if number in job_of else NodeState.HOLE,
                "10.0.0.1",
                job=job_of.get(number),
                job_name=job_of.get(number, ""),
            )
            for number, name in enumerate(self._names)
        )
        taken = {self._names[node] for node in job_of}
        self.scheduler.own_jobs = [
            job for job in self.scheduler.own_jobs if taken.isdisjoint(slots_in(job.node or ""))
        ]

    def _turn_agents(self) -> None:
        there = {job.fragment for job in self.scheduler.own_jobs}
        with self.sessions.begin() as session:
            rows = session.execute(select(Fragment, Trainer).join(Trainer, Trainer.id == Fragment.trainer_id))
            fragments = [(fragment, trainer) for fragment, trainer in rows if fragment.id in there]
            for fragment, trainer in fragments:
                before = session.get(Report, fragment.id)
                report = self._says(fragment, trainer, 1 if before is None else before.sequence + 1)
                if report.phase is Phase.LEFT:
                    self.scheduler.cancel(fragment.id)
                session.merge(
                    Report(
                        fragment_id=fragment.id,
                        sequence=report.sequence,
                        received_at=self.now,
                        body=report,
                    )
                )
        self.launches = {}
        for config in self.scheduler.submitted:
            self.launches[config.spec.name] = self.launches.get(config.spec.name, 0) + 1

    def _says(self, fragment: Fragment, trainer: Trainer, sequence: int) -> FragmentReport:
        said = {"sequence": sequence, "pid": 1, "host": fragment.node, "ranks": (Endpoint(host="h", port=1),)}
        if self.now - fragment.launched_at < self._start_up_s:
            return FragmentReport(phase=Phase.LEFT if fragment.released else Phase.WARMING, **said)
        if fragment.id not in trainer.members or trainer.ended_through >= trainer.generation:
            return FragmentReport(phase=Phase.LEFT if fragment.released else Phase.READY, **said)
        name = trainer.name
        self.first_trained_at.setdefault(name, self.now)
        self.training_node_s[name] = self.training_node_s.get(name, 0.0) + 1.0
        return FragmentReport(
            phase=Phase.TRAINING, generation=trainer.generation, progress=self._progress(fragment, trainer), **said
        )

    def _progress(self, fragment: Fragment, trainer: Trainer) -> TrainingProgress | None:
        """Rank 0 tells of it."""
        if trainer.members[0] != fragment.id:
            return None
        nodes = len(trainer.members)
        done = self._samples[trainer.id] = self._samples.get(trainer.id, 0.0) + self._samples_per_s * nodes
        return TrainingProgress(
            generation=trainer.generation,
            nodes=nodes,
            step=int(done) // 100,
            total_steps=10**9,
            epoch=0,
            samples=int(done),
            samples_per_s=self._samples_per_s * nodes,
        )
