"""A whole service beside a simulated scheduler and simulated agents, taken through a log in virtual time."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from oakum_service import clock
from oakum_service.api.report_inbox import ReportInbox
from oakum_service.change_signal import ChangeSignal
from oakum_service.config import Settings
from oakum_service.control import controller
from oakum_service.control.controller import Controller
from oakum_service.control.new_trainers import add_trainer
from oakum_service.db.engine import open_engine, open_readers, open_reporters, open_sessions, upgrade
from oakum_service.db.lease import LeaseHolder
from oakum_service.fragments.configs import FragmentConfigs
from oakum_solver.logs.holes import HoleLog, changes
from oakum_solver.objectives import Objective
from oakum_solver.replay.accounts import sample_worth
from oakum_solver.replay.costs import CostModel, RescaleCosts
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import Workload
from twin.node_time import NodeTime, Use
from twin.promises import Promises, newest_plan
from twin.scheduler import Manners, SimulatedSlurm
from twin.trainers import specs_of
from twin.training import HEARTBEAT_S, Pace, SimulatedAgents, SimulatedTrainer
from twin.virtual_time import VirtualTimeLoop

_NOTICES_S = 60.0
"""Between two looks for notices to send, which nobody here gets."""
_SETTLING_S = 60.0
"""After the log's end, until database and scheduler have to agree."""
_CHECK_S = 600.0
Told = Callable[[float], None]


@dataclass(frozen=True)
class TwinSettings:
    """What is varied."""

    manners: Manners = field(default_factory=Manners)
    pace: Pace = field(default_factory=Pace)
    turn_s: float = 300.0
    """Between two turns of the controller without news, in seconds: these change little, and a day has many."""
    seed: int = 1
    service: dict[str, Any] = field(default_factory=dict)
    """Settings of the service that are not its defaults."""

    def of_service(self, data_dir: Path) -> Settings:
        """The service's settings. Curves are given, as a replay has them; silence is judged by coarse reports."""
        given = {
            "data_dir": data_dir,
            "scheduler": "slurm",
            "learn_curves": False,
            "poll_s": self.turn_s,
            "heartbeat_timeout_s": 4 * HEARTBEAT_S,
            "start_up_s": self.pace.startup_s,
            "stall_s": self.pace.stall_s,
            "leave_deadline_s": self.pace.leave_deadline_s,
        }
        return Settings(**{**given, **self.service})

    def of_replay(self) -> ReplaySettings:
        """A replay's settings with the same rules and costs."""
        rules = self.of_service(Path("unused")).planning_rules
        return ReplaySettings.following(
            rules, cost=CostModel.IN_PLACE, stall_s=self.pace.stall_s, startup_s=self.pace.startup_s
        )


@dataclass(frozen=True)
class TwinResult:
    """What the twin has achieved and how."""

    achieved: float
    """As `ReplayResult.achieved`."""
    node_hours: dict[Use, float]
    broken: tuple[str, ...]
    foreground_jobs: int
    kept_waiting: int
    longest_wait_s: float
    fragments: int
    submissions: int
    refusals: int
    deaths: int
    plans: int
    virtual_s: float
    wall_s: float


def run_twin(log: HoleLog, workload: Workload, settings: TwinSettings, told: Told = lambda _: None) -> TwinResult:
    """Take the service through the log with the trainers of `workload`; `told` is called with the share that is
    done. Raises `ProblemError` for a trainer that the service would not take."""
    with _folder() as folder, _quiet(), patch.object(controller, "SEND_EVERY_S", _NOTICES_S):
        site = _Site(log, workload, settings, folder)
        try:
            with clock.told_by(site.loop):
                site.loop.run_until_complete(site.run(told))
        finally:
            site.close()
    return site.result()


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="oakum-twin-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """The service's log is for its faults alone: it would tell every node's every change."""
    log = logging.getLogger("oakum")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


class _Site:
    def __init__(self, log: HoleLog, workload: Workload, settings: TwinSettings, folder: Path) -> None:
        self._began_s = time.perf_counter()
        self._log, self._settings = log, settings
        self._specs = specs_of(workload)
        made = settings.of_service(folder)
        self._guard_s = made.starvation_guard_s + made.starvation_quantum_s
        costs = RescaleCosts(CostModel.IN_PLACE, settings.pace.stall_s, settings.pace.startup_s)
        self._trainers = [
            SimulatedTrainer(spec, item) for spec, item in zip(self._specs, workload.items, strict=True)
        ]
        self._planned = [costs.charged(item.trainer) for item in workload.items]
        self._objective: Objective = made.objective
        self.loop = VirtualTimeLoop()
        self._node_time = NodeTime(len(log.nodes))
        self._promises = Promises()
        random = Random(settings.seed)
        self._scheduler = SimulatedSlurm(self.loop, log.nodes, settings.manners, self._node_time, random)
        self._engine = open_engine(f"sqlite:///{folder / 'oakum.db'}")
        upgrade(self._engine)
        self._sessions, self._readers = open_sessions(self._engine), open_readers(self._engine)
        configs = FragmentConfigs(made, b"k" * 32, "http://twin.invalid", self._scheduler.grace_s)
        self._news_for_readers = ChangeSignal()
        news_for_controller = ChangeSignal()
        lease = LeaseHolder(self._sessions, alone=True)
        self._controller = Controller(
            made,
            self._sessions,
            self._readers,
            self._scheduler,
            configs,
            lease,
            news_for_controller,
            self._news_for_readers,
        )
        self._news_for_controller = news_for_controller
        self._agents = SimulatedAgents(
            self.loop,
            self._trainers,
            settings.pace,
            self._node_time,
            random,
            inbox=ReportInbox(open_reporters(self._engine), news_for_controller),
            readers=self._readers,
            secret_of=configs.secret_of,
            end_job=self._scheduler.end,
        )
        self._scheduler.agents = self._agents
        self._numbers = {name: number for number, name in enumerate(log.nodes)}
        self._plan = self._num_plans = 0
        self._achieved = 0.0
        self._node_hours: dict[Use, float] = {}
        self._idle = 0
        self._enough_since_s: float | None = None
        """Since when there have been enough nodes for the fewest that all trainers need."""
        self._fewest = sum(item.trainer.min_nodes for item in workload.items)

    async def run(self, told: Told) -> None:
        beside = [
            self.loop.create_task(work)
            for work in (
                self._submit(),
                self._agents.obey(self._news_for_readers),
                self._agents.beat(),
                self._watch_plans(),
                self._check(),
            )
        ]
        changing = self.loop.create_task(self._change(told))
        await asyncio.sleep(0)
        controlling = self.loop.create_task(self._controller.run())
        done, _ = await asyncio.wait({changing, controlling, *beside}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # whatever has failed is raised
        self._close_accounts()
        await asyncio.sleep(_SETTLING_S)
        self._check_end()
        await self._controller.stop()
        for task in beside:
            task.cancel()
        await asyncio.gather(controlling, *beside, return_exceptions=True)

    def close(self) -> None:
        """Close what a run has opened, whether it has ended or not."""
        self._scheduler.stop()
        # An interruption has been raised already, by whichever task it hit.
        self.loop.set_exception_handler(lambda *_: None)
        if left := asyncio.all_tasks(self.loop):
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()
        self._engine.dispose()

    def result(self) -> TwinResult:
        return TwinResult(
            achieved=self._achieved,
            node_hours=self._node_hours,
            broken=tuple(self._promises.broken),
            foreground_jobs=self._scheduler.waits.jobs,
            kept_waiting=self._scheduler.waits.kept_waiting,
            longest_wait_s=self._scheduler.waits.longest_s,
            fragments=len(self._agents.started),
            submissions=self._scheduler.submissions,
            refusals=self._scheduler.refusals,
            deaths=self._agents.deaths,
            plans=self._num_plans,
            virtual_s=self._log.duration_s,
            wall_s=time.perf_counter() - self._began_s,
        )

    async def _submit(self) -> None:
        """Trainers are submitted when their time has come."""
        for run in self._trainers:
            if (wait_s := run.item.submit_s - self.loop.time()) > 0:
                await asyncio.sleep(wait_s)
            run.counted_to_s, run.idle_since_s = self.loop.time(), self.loop.time()
            with self._sessions.begin() as session:
                add_trainer(session, run.spec, run.item.trainer.user or run.spec.name)
            self._news_for_controller.notify()
            # Times tell the order of submission.
            await asyncio.sleep(1e-3)
        await self.loop.create_future()  # until the end, as all that goes on beside the log

    async def _change(self, told: Told) -> None:
        """The log takes its course."""
        for at_s, taken, freed in changes(self._log):
            if at_s >= self._log.duration_s:
                break
            if (wait_s := at_s - self.loop.time()) > 0:
                told(self.loop.time() / self._log.duration_s)
                await asyncio.sleep(wait_s)
            self._scheduler.change(np.asarray(taken).tolist(), np.asarray(freed).tolist())
            self._idle += len(freed) - len(taken)
            is_enough = self._idle >= self._fewest
            if is_enough != (self._enough_since_s is not None):
                self._enough_since_s = self.loop.time() if is_enough else None
        await asyncio.sleep(self._log.duration_s - self.loop.time())

    async def _watch_plans(self) -> None:
        while True:
            version = self._news_for_readers.version
            if (found := newest_plan(self._readers, self._plan)) is not None:
                self._plan, grants = found
                self._num_plans += 1
                self._promises.check_plan(self._plan, grants)
                nodes = [self._numbers[node] for grant in grants.values() for node in grant.nodes]
                self._node_time.grant(nodes, self.loop.time())
            await self._news_for_readers.wait(version, 3600.0)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            self._promises.check_fragments(self._readers)
            for run in self._trainers:
                if run.idle_since_s is not None and self._enough_since_s is not None and not run.is_finished:
                    waited_s = self.loop.time() - max(run.idle_since_s, self._enough_since_s)
                    self._promises.check_starved(run.spec.name, waited_s, self._guard_s + _CHECK_S)

    def _close_accounts(self) -> None:
        for run, planned in zip(self._trainers, self._planned, strict=True):
            run.advance(self.loop.time())
            self._achieved += run.samples * sample_worth(self._objective, planned)
        self._node_time.close(self.loop.time())
        self._node_hours = {use: seconds / 3600 for use, seconds in self._node_time.node_s.items()}

    def _check_end(self) -> None:
        manners = self._settings.manners
        self._promises.check_fragments(self._readers)
        self._promises.check_end(self._readers, self._scheduler.own_fragments(), self._agents.started)
        told_s = manners.hook_s if manners.hooks else manners.poll_s
        within_s = told_s + manners.kill_wait_s + manners.completing_s + 1.0
        self._promises.check_wait(self._scheduler.waits.longest_s, within_s)
