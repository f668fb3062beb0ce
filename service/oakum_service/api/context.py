"""The parts of the service that routes work with, and the dependency that hands them to a route."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Request

from oakum_service.api.node_lists import NodeLists
from oakum_service.api.shared_answers import SharedAnswers
from oakum_service.api.trial_plans import TrialPlans
from oakum_service.change_signal import ChangeSignal
from oakum_service.config import Settings
from oakum_service.control.delays import WeekOfDelays
from oakum_service.control.directives import Generations
from oakum_service.db.engine import Sessions
from oakum_service.db.writability import Writability
from oakum_service.documents.silence import Silence
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.fragments.trainer_files import TrainerFiles
from oakum_service.node_history.kept_hours import KeptHours
from oakum_service.orders.live_settings import CurrentSettings
from oakum_service.orders.quotas import NodeHours
from oakum_service.peers.peers import NoPeers, Peers
from oakum_service.schedulers.port import Scheduler, too_old_s
from oakum_service.standing import Circumstances
from oakum_service.turn_clock import TurnClock


@dataclass(frozen=True)
class Context:
    """The parts of the service that the API needs."""

    settings: Settings
    sessions: Sessions
    readers: Sessions
    reporters: Sessions
    """Sessions for writing agents' reports only."""
    configs: FragmentConfigs
    scheduler: Scheduler
    news_for_controller: ChangeSignal
    """Raised when the controller has something to look at."""
    news_for_readers: ChangeSignal
    """Raised when something has changed that agents, event streams or the CLI wait for."""
    writability: Writability = field(default_factory=lambda: Writability("the database"))
    node_hours: NodeHours = field(default_factory=NodeHours)
    turns: TurnClock = field(default_factory=TurnClock)
    """When the controller of this process last finished a turn."""
    listeners: dict[object, str] = field(default_factory=dict)
    """The hash of its token for each open event stream."""
    trial_plans: TrialPlans = field(default_factory=TrialPlans)
    """Lets few previews and dry runs be computed."""
    delays: WeekOfDelays = field(default_factory=WeekOfDelays)
    """How long foreground jobs waited lately."""
    node_lists: NodeLists = field(default_factory=NodeLists)
    """Lists of nodes that were answered lately."""
    lists: SharedAnswers = field(default_factory=SharedAnswers)
    """Lists of trainers and nodes that are being read."""
    kept_hours: KeptHours = field(default_factory=KeptHours)
    """What nodes did in the hours that pictures have shown."""
    generations: Generations = field(default_factory=Generations)
    """What directives tell of trainers' generations."""
    peers: Peers = field(default_factory=NoPeers)
    """The service's other processes."""

    @property
    def files(self) -> TrainerFiles:
        """Answers whose account trainers' code and files belong to, and where their checkpoints are."""
        return self.configs.files

    @cached_property
    def current(self) -> CurrentSettings:
        """The settings with what administrators have changed since the start."""
        return CurrentSettings(self.readers, self.settings)

    def snapshot_at(self) -> float | None:
        """When the scheduler's state that plans are made on was read, in Unix seconds; None before the first
        reading."""
        if self.peers.is_controller:
            return self.scheduler.taken_at()
        controller = self.peers.controller()
        return None if controller is None else controller.snapshot_at

    def silence(self) -> Silence | None:
        """Since when the scheduler has not answered the controller, and what was tried; None if it does."""
        if self.peers.is_controller:
            return self.scheduler.silence()
        controller = self.peers.controller()
        return None if controller is None else controller.silence

    def circumstances(self) -> Circumstances:
        """What holds for every trainer at this moment: whether this is a dry run, and since when the scheduler has
        not answered. The hold is left out; it is in the database."""
        taken_at, silence = self.snapshot_at(), self.silence()
        oldest = time.time() - too_old_s(self.scheduler, self.current.now().poll_s)
        unanswered_since = taken_at if taken_at is not None and taken_at < oldest else None
        if silence is not None and taken_at is not None:
            unanswered_since = silence.since
        return Circumstances(
            dry_run=self.settings.dry_run,
            unanswered_since=unanswered_since,
            learns_curves=self.settings.learns_curves,
        )


async def _context(request: Request) -> Context:
    # A coroutine, since FastAPI would hand a function to a thread, which takes longer than the function.
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


InContext = Annotated[Context, Depends(_context)]
