"""Simulated agents and the trainers whose ranks they own, in virtual time.

An agent warms up, becomes ready, and obeys the directives that the service's database has for it, as a real one
does by the API: a generation that names it makes its trainer stop, switch and train on. What it reports goes
through the same inbox as reports that come over the network. Steps are so short that a rate stands for them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from sqlalchemy import select

from oakum_service.api.report_inbox import ReportInbox
from oakum_service.change_signal import ChangeSignal
from oakum_service.control.directives import Generations, SecretOf, read_directive
from oakum_service.db.engine import Sessions
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import NoLongerWanted
from oakum_solver.replay.workload import WorkItem
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.protocol import (
    Directive,
    Endpoint,
    FragmentReport,
    Generation,
    Held,
    Phase,
    Switch,
    TrainingProgress,
)
from oakum_worker.spec import TrainerSpec
from twin.node_time import NodeTime, Use
from twin.virtual_time import VirtualTimeLoop

_EXIT_S = 0.1
"""From an agent's last report to the end of its job."""
_NOTICED_S = 0.2
"""Until the members of a generation notice that one of them is gone."""
_IN_GENERATION = (Phase.TRAINING, Phase.LEAVING, Phase.BROKEN)
HEARTBEAT_S = 300.0
"""Between two reports of an agent that has nothing to tell. A real one reports up to 300 times as often, which
changes nothing: an agent that dies is seen by the end of its job."""


@dataclass(frozen=True)
class Pace:
    """How long agents take, in seconds, and how often they die."""

    startup_s: float = 20.0
    stall_s: float = 1.0
    """From the end of the last step before a switch to the end of the first one after it, without that step."""
    spread: float = 0.0
    """Standard deviation of the logarithm of both; 0: they are always the same."""
    leave_deadline_s: float = 1.0
    """After a signal, an agent that others have not left out by then goes all the same."""
    deaths_per_node_day: float = 0.0

    def draw(self, random: Random, seconds: float) -> float:
        """Draw a duration in seconds from a log-normal distribution whose mean is `seconds`."""
        if not self.spread:
            return seconds
        return seconds * math.exp(random.gauss(-(self.spread**2) / 2, self.spread))


@dataclass(eq=False)
class Agent:
    """One fragment's agent and its ranks."""

    fragment: str
    node: int
    host: str
    trainer: SimulatedTrainer
    phase: Phase = Phase.WARMING
    sequence: int = 0
    generation: int = 0
    broken: int = 0
    holds: Held = Held.NOWHERE
    startup_s: float | None = None
    signal: str = ""
    signalled_at: float | None = None
    switches: tuple[Switch, ...] = ()
    is_gone: bool = False

    def report(self, progress: TrainingProgress | None) -> FragmentReport:
        """What the agent says now."""
        self.sequence += 1
        return FragmentReport(
            phase=self.phase,
            sequence=self.sequence,
            pid=1,
            host=self.host,
            ranks=(Endpoint(host=self.host, port=1),),
            generation=self.generation,
            broken=self.broken,
            holds=self.holds,
            startup_s=self.startup_s,
            progress=progress,
            switches=self.switches,
            signalled=bool(self.signal),
            signalled_at=self.signalled_at,
            signal=self.signal,
        )


@dataclass(eq=False)
class SimulatedTrainer:
    """What all ranks of one trainer do together. Times are virtual seconds."""

    spec: TrainerSpec
    item: WorkItem
    agents: dict[str, Agent] = field(default_factory=dict)
    """By fragment: those that are there."""
    revision: int = -1
    """Newest revision of its directives that the agents know."""
    target: int = 0
    """Newest generation that they know, formed or not."""
    members: tuple[Agent, ...] = ()
    """Of that generation."""
    is_training: bool = False
    samples: float = 0.0
    counted_to_s: float = 0.0
    stopped_at_s: float | None = None
    """Since when it has not trained; None before it has trained, and while it trains."""
    idle_since_s: float | None = None
    """Since when it has had no fragment; None while it has one."""
    is_finished: bool = False
    switching: asyncio.TimerHandle | None = None
    finishing: asyncio.TimerHandle | None = None

    @property
    def rate(self) -> float:
        """Samples per second now."""
        trainer = self.item.trainer
        if not self.is_training:
            return 0.0
        return trainer.curve.rate(trainer.fitting(min(len(self.members), trainer.max_nodes)))

    def advance(self, now_s: float) -> None:
        """Train until `now_s`."""
        self.samples += self.rate * (now_s - self.counted_to_s)
        self.counted_to_s = now_s
        if self.item.samples is not None:
            self.samples = min(self.samples, self.item.samples)

    @property
    def progress(self) -> TrainingProgress:
        """Where training stands, as rank 0 says it."""
        batch, total = self.spec.global_batch, self.item.samples
        return TrainingProgress(
            generation=self.target,
            nodes=len(self.members),
            step=int(self.samples // batch),
            total_steps=2**30 if total is None else math.ceil(total / batch),
            epoch=0,
            samples=int(self.samples),
            total_samples=None if total is None else math.ceil(total),
            global_batch=batch,
            loss=1.0,
            samples_per_s=self.rate or None,
            checkpoint_step=int(self.samples // batch) if self.is_finished else None,
            final=self.is_finished,
        )


class SimulatedAgents:
    """All agents: starts them in jobs, lets them obey directives, and posts their reports."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        trainers: Iterable[SimulatedTrainer],
        pace: Pace,
        node_time: NodeTime,
        random: Random,
        *,
        inbox: ReportInbox,
        readers: Sessions,
        secret_of: SecretOf,
        end_job: Callable[[str], None],
    ) -> None:
        self.trainers = {trainer.spec.name: trainer for trainer in trainers}
        self.started: list[str] = []
        """Fragments in the order of their begins."""
        self.deaths = 0
        self._loop, self._pace, self._node_time, self._random = loop, pace, node_time, random
        self._inbox, self._readers, self._secret_of, self._end_job = inbox, readers, secret_of, end_job
        self._agents: dict[str, Agent] = {}
        self._generations = Generations()
        self._due: dict[str, Agent] = {}
        """Fragment -> its agent, which has something to report."""

    # What the scheduler does to them.

    def start(self, config: FragmentConfig, node: int) -> None:
        """Begin in a job that has just begun on the node."""
        trainer = self.trainers[config.spec.name]
        agent = Agent(config.fragment, node, config.node, trainer)
        self._agents[agent.fragment] = trainer.agents[agent.fragment] = agent
        trainer.idle_since_s = None
        self.started.append(agent.fragment)
        self._say(agent)
        startup_s = self._pace.draw(self._random, self._pace.startup_s)
        self._loop.call_later(startup_s, self._get_ready, agent, startup_s)
        if self._pace.deaths_per_node_day:
            life_s = self._random.expovariate(self._pace.deaths_per_node_day / 86400.0)
            self._loop.call_later(life_s, self._die, agent)
        self._obey_own(agent)

    def signal(self, fragment: str, name: str) -> None:
        """Hear a signal of the scheduler."""
        agent = self._agents.get(fragment)
        if agent is None or agent.signal:
            return
        agent.signal, agent.signalled_at = name, self._loop.now()
        if agent in agent.trainer.members:
            agent.phase = Phase.LEAVING
            self._say(agent)
            self._loop.call_later(self._pace.leave_deadline_s, self._leave_late, agent)
        else:
            self._exit(agent)

    def kill(self, fragment: str) -> None:
        """Be gone without another word."""
        if (agent := self._agents.get(fragment)) is not None:
            self._go(agent)

    # What the service does to them.

    async def obey(self, news: ChangeSignal) -> None:
        """Obey what the service orders, whenever it does."""
        while True:
            version = news.version
            self._obey_all()
            await news.wait(version, 3600.0)

    async def beat(self) -> None:
        """Report now and then although nothing has changed."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for agent in self._agents.values():
                self._say(agent)

    def _obey_all(self) -> None:
        with self._readers.begin() as session:
            rows = session.execute(select(Trainer.name, Trainer.revision)).all()
            changed = [self.trainers[name] for name, revision in rows if self.trainers[name].revision != revision]
            told = {
                trainer: {agent: self._directive(session, agent) for agent in trainer.agents.values()}
                for trainer in changed
            }
        for trainer, directives in told.items():
            self._obey_as_one(trainer, directives)
        for name, revision in rows:
            self.trainers[name].revision = revision

    def _obey_own(self, agent: Agent) -> None:
        """A new agent asks for the first time."""
        with self._readers.begin() as session:
            directive = self._directive(session, agent)
        if directive is None or directive.leave:
            self._exit(agent)

    def _directive(self, session, agent: Agent) -> Directive | None:  # type: ignore[no-untyped-def]
        try:
            return read_directive(session, agent.fragment, self._secret_of, self._generations)
        except NoLongerWanted:
            return None

    def _obey_as_one(self, trainer: SimulatedTrainer, directives: dict[Agent, Directive | None]) -> None:
        for agent in [agent for agent, directive in directives.items() if directive is None]:
            self._exit(agent)
        orders = {agent: directive for agent, directive in directives.items() if directive is not None}
        if not orders:
            return
        newest = max(orders.values(), key=lambda each: each.revision)
        if trainer.target and newest.ended_through >= trainer.target:
            self._break(trainer)
        if newest.generation is not None and newest.generation.number > trainer.target:
            self._switch(trainer, newest.generation)
        for agent, directive in orders.items():
            if directive.leave and agent not in trainer.members:
                self._exit(agent)

    # What they do.

    def _get_ready(self, agent: Agent, startup_s: float) -> None:
        if not agent.is_gone:
            agent.phase, agent.startup_s = Phase.READY, startup_s
            self._node_time.turn(agent.node, Use.STALL, self._loop.time())
            self._say(agent)

    def _switch(self, trainer: SimulatedTrainer, generation: Generation) -> None:
        """All members stop at a step's end and form the generation; who is left out goes."""
        self._stop(trainer)
        before = trainer.members
        named = [self._agents.get(member.fragment) for member in generation.members]
        trainer.target = generation.number
        trainer.members = tuple(agent for agent in named if agent is not None)
        for agent in before:
            if agent not in trainer.members and not agent.is_gone:
                self._let_go(agent)
        if len(trainer.members) < len(named):  # one has gone since the generation was made
            self._loop.call_later(_NOTICED_S, self._tell_break, trainer, generation.number)
        elif trainer.members:
            stall_s = self._pace.draw(self._random, self._pace.stall_s)
            trainer.switching = self._loop.call_later(stall_s, self._form, trainer)

    def _form(self, trainer: SimulatedTrainer) -> None:
        """The generation's first step begins."""
        now_s, trainer.switching = self._loop.time(), None
        trainer.advance(now_s)
        held = any(agent.holds is Held.RANKS for agent in trainer.members)
        trainer.is_training = True
        step_s = trainer.spec.global_batch / trainer.rate if trainer.rate else 0.0
        stall_s = None
        if held and trainer.stopped_at_s is not None:
            stall_s = now_s - trainer.stopped_at_s + step_s
        source = "survivor" if held else "checkpoint" if trainer.samples else "scratch"
        step = trainer.progress.step
        trainer.stopped_at_s = None
        first = trainer.members[0]
        switch = Switch(generation=trainer.target, step=step, stall_s=stall_s, step_s=step_s, source=source)
        first.switches = (*first.switches[-7:], switch)
        for agent in trainer.members:
            agent.generation, agent.holds = trainer.target, Held.RANKS
            agent.phase = Phase.LEAVING if agent.signal else Phase.TRAINING
            self._node_time.turn(agent.node, Use.PRODUCTIVE, now_s)
            self._say(agent)
        if (left := self._left_s(trainer)) is not None:
            trainer.finishing = self._loop.call_later(left, self._finish, trainer)

    def _left_s(self, trainer: SimulatedTrainer) -> float | None:
        if trainer.item.samples is None or not trainer.rate:
            return None
        return max(0.0, trainer.item.samples - trainer.samples) / trainer.rate

    def _finish(self, trainer: SimulatedTrainer) -> None:
        trainer.advance(self._loop.time())
        trainer.samples, trainer.is_finished = float(trainer.item.samples or 0.0), True
        for agent in trainer.members:
            agent.phase = Phase.FINISHED
            self._say(agent)
        for agent in trainer.members:
            self._go(agent, after_s=_EXIT_S)
        trainer.is_training, trainer.members = False, ()

    def _stop(self, trainer: SimulatedTrainer) -> None:
        """Training stops at a step's end."""
        now_s = self._loop.time()
        trainer.advance(now_s)
        if trainer.is_training:
            trainer.stopped_at_s = now_s
        trainer.is_training = False
        for timer in (trainer.switching, trainer.finishing):
            if timer is not None:
                timer.cancel()
        trainer.switching = trainer.finishing = None
        for agent in trainer.members:
            if not agent.is_gone:
                self._node_time.turn(agent.node, Use.STALL, now_s)

    def _break(self, trainer: SimulatedTrainer) -> None:
        """The generation is unusable: its members are free again and say so."""
        if trainer.is_training or trainer.switching is not None or trainer.members:
            self._tell_break(trainer, trainer.target)

    def _tell_break(self, trainer: SimulatedTrainer, generation: int) -> None:
        if trainer.target != generation:
            return
        self._stop(trainer)
        for agent in trainer.members:
            if not agent.is_gone and agent.broken < generation:
                agent.broken = generation
                agent.phase = Phase.LEAVING if agent.signal else Phase.BROKEN
                self._say(agent)

    def _let_go(self, agent: Agent) -> None:
        """The others have gone on without it: it goes if it was told to, else it is ready again."""
        self._node_time.turn(agent.node, Use.LEAVING, self._loop.time())
        if agent.signal:
            self._exit(agent)
            return
        agent.phase = Phase.READY
        self._node_time.turn(agent.node, Use.STALL, self._loop.time())
        self._say(agent)

    def _leave_late(self, agent: Agent) -> None:
        if not agent.is_gone:
            self._exit(agent)

    def _die(self, agent: Agent) -> None:
        if not agent.is_gone:
            self.deaths += 1
            self._go(agent)
            self._end_job(agent.fragment)

    def _exit(self, agent: Agent) -> None:
        """Say goodbye and go."""
        if agent.is_gone:
            return
        agent.phase = Phase.LEFT
        self._say(agent)
        self._go(agent, after_s=_EXIT_S)

    def _go(self, agent: Agent, after_s: float | None = None) -> None:
        """Be gone; the job ends `after_s` seconds later, if at all by this."""
        if agent.is_gone:
            return
        agent.is_gone = True
        trainer = agent.trainer
        self._node_time.turn(agent.node, Use.LEAVING, self._loop.time())
        del self._agents[agent.fragment], trainer.agents[agent.fragment]
        if not trainer.agents:
            trainer.idle_since_s = self._loop.time()
        if after_s is not None:
            self._loop.call_later(after_s, self._end_job, agent.fragment)
        if agent in trainer.members and not trainer.is_finished:
            self._stop(trainer)
            self._loop.call_later(_NOTICED_S, self._tell_break, trainer, trainer.target)

    # What they report.

    def _say(self, agent: Agent) -> None:
        if not self._due:
            self._loop.call_soon(self._post)
        self._due[agent.fragment] = agent

    def _post(self) -> None:
        """Post all reports of this moment, as they would arrive together."""
        due, self._due = self._due, {}
        sent = []
        for agent in due.values():
            trainer = agent.trainer
            trainer.advance(self._loop.time())
            tells = trainer.members[:1] == (agent,) or (agent.phase is Phase.FINISHED and agent.switches)
            progress = trainer.progress if tells and agent.generation == trainer.target else None
            sent.append((agent, self._inbox.submit(agent.fragment, agent.report(progress))))
        for agent, is_live in sent:
            if not is_live.result() and not agent.is_gone:
                self._exit(agent)
