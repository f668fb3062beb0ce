"""Any history of launches, losses, releases and breaks, played against ranks that obey what is published.

The ranks here do what `rank.process` and `fragment.agent` of the worker do, without time, torch or processes:
they form a generation when all of its members meet, switch together at a boundary, stay blocked when a peer is
gone until they notice or are told, and wait for a generation that they may use. Reports and directives are
level-triggered and may be late; the newest replaces those before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from num_examples import scaled
from oakum_service.control.decide import Decision
from oakum_service.control.membership import MembershipUpdater, _give_up, _publish
from oakum_service.db.models.fragments import Fragment as FragmentRow
from oakum_service.db.models.fragments import FragmentState
from oakum_service.db.models.trainers import GenerationRecord
from oakum_service.db.models.trainers import Trainer as TrainerRow
from oakum_worker.protocol import FragmentReport, Held, Phase
from oakum_worker.spec import TrainerSpec

MOST_FRAGMENTS = 12
MOST_ROUNDS = 80
REGROUP_TIMEOUT_S = 3600.0
"""Passes only when a rule says so."""

EVENTS = (
    "kill",
    "notice_an_end",
    "lose_power",
    "lose_power_unseen",
    "miss_heartbeats",
    "ask_to_leave",
    "let_the_deadline_pass",
    "release",
    "hang",
    "break_a_connection",
)
STEPS = ("warm_up", "report", "deliver", "advance", "notice_a_break")
Event = tuple[Callable[["Fragment"], bool], Callable[["Fragment"], object]]
"""Which fragments it can happen to, and what it does."""


class NoDatabase:
    """Takes the place of a database session and ignores what is written: the test itself holds the rows that
    matter."""

    def add(self, row: object) -> None:
        assert isinstance(row, GenerationRecord)


@dataclass(frozen=True)
class Word:
    """What is published of a trainer: `protocol.Directive` without what the decision does not touch."""

    generation: int = 0
    members: tuple[str, ...] = ()
    ended_through: int = 0
    saver: str | None = None


@dataclass
class Fragment:
    """One fragment: its process, its agent, its one rank, and what the service knows of it."""

    id: str
    alive: bool = True
    """The process is there."""
    known: bool = True
    """The scheduler has not said yet that the job has ended."""
    dark: bool = False
    """Its node has lost power: nobody's connection to it is closed."""
    silent: bool = False
    """The service has missed its heartbeats."""
    hung: bool = False
    signalled: bool = False
    closing: bool = False
    place: str = "warming"
    """warming, waiting (for a generation), forming, training, cut (told that its group is over), left."""
    formed: int = 0
    """Newest generation the rank has begun to form: its group while it is forming, training or cut."""
    joined: bool = False
    """It has trained since it last waited to be taken in."""
    agreed: int = 0
    broken: int = 0
    rank_phase: Phase = Phase.WARMING
    told: int = 0
    """Newest generation that the rank has reported as formed."""
    seen: Word = field(default_factory=Word)
    current: tuple[str, ...] = ()
    """Members of the newest generation seen that lists the fragment."""
    report: FragmentReport | None = None
    """The newest report that has arrived."""
    ended_at_revision: int = -1
    """The newest revision when its job's end was noticed."""

    def __post_init__(self) -> None:
        self.row = FragmentRow(id=self.id, trainer_id="t", node=f"node of {self.id}", released=False, cause="")

    @property
    def works(self) -> bool:
        return self.alive and not self.hung

    @property
    def phase(self) -> Phase:
        """What the agent would report now."""
        if self.place == "left":
            return Phase.LEFT
        return Phase.LEAVING if self.signalled else self.rank_phase

    def leave(self) -> None:
        """The ranks have ended and the agent exits; its last report may still arrive."""
        self.place, self.alive = "left", False

    def breaks(self) -> None:
        """The rank has seen its group break."""
        self.broken, self.place = self.formed, "waiting"
        self.rank_phase = Phase.BROKEN if self.joined else Phase.READY

    def usable(self) -> bool:
        """Whether the newest word is a generation to act on: `membership.next_generation`."""
        if self.seen.generation <= max(self.formed, self.seen.ended_through, self.agreed - 1):
            return False
        return self.joined or self.id in self.seen.members


class MembershipMachine(RuleBasedStateMachine):
    """The service's side and the fragments' side, and the wires between them."""

    def __init__(self) -> None:
        super().__init__()
        self.fragments: dict[str, Fragment] = {}
        self.history: dict[int, tuple[str, ...]] = {0: ()}
        self.dropped: set[str] = set()
        self.clock = 0.0

    @initialize(min_nodes=st.integers(1, 3), more=st.none() | st.sets(st.integers(4, MOST_FRAGMENTS)))
    def begin(self, min_nodes: int, more: set[int] | None) -> None:
        """With `more`, the trainer can have these numbers of nodes and its minimum only."""
        self.min_nodes = min_nodes
        sizes = range(min_nodes, MOST_FRAGMENTS + 1) if more is None else sorted({min_nodes, *more})
        self.sizes = tuple(sizes)
        spec = TrainerSpec(
            name="t",
            entrypoint="a:b",
            global_batch=64,
            epochs=1,
            min_nodes=min_nodes,
            sizes="any" if more is None else self.sizes,
        )
        self.trainer = TrainerRow(
            id="t",
            spec=spec,
            generation=0,
            members=(),
            ended_through=0,
            revision=0,
            published_at=0.0,
            nodes_lost=0,
            nodes_gained=0,
            rescales=0,
        )
        self.keeper = MembershipUpdater(regroup_timeout_s=REGROUP_TIMEOUT_S, warm_up_timeout_s=math.inf)

    @property
    def word(self) -> Word:
        trainer = self.trainer
        return Word(trainer.generation, tuple(trainer.members), trainer.ended_through, trainer.saver)

    # The world.

    @rule(count=st.integers(1, 3))
    def launch(self, count: int) -> None:
        for _ in range(min(count, MOST_FRAGMENTS - len(self.fragments))):
            fragment = Fragment(f"f{len(self.fragments)}")
            self.fragments[fragment.id] = fragment

    @rule(event=st.sampled_from(EVENTS), who=st.integers(0, MOST_FRAGMENTS))
    def happen(self, event: str, who: int) -> None:
        can_happen, act = getattr(self, f"_{event}")()
        names = [name for name, fragment in self.fragments.items() if can_happen(fragment)]
        if names:
            act(self.fragments[names[who % len(names)]])

    def _kill(self) -> Event:
        return lambda f: f.alive, lambda f: setattr(f, "alive", False)

    def _notice_an_end(self) -> Event:
        return lambda f: f.known and not f.alive, self._forget

    def _forget(self, fragment: Fragment) -> None:
        """Its job has ended. Its last report is still read, until something new is published."""
        if fragment.known:
            fragment.known, fragment.row.state = False, FragmentState.ENDED
            fragment.ended_at_revision = self.trainer.revision

    def _lose_power(self) -> Event:
        def lose(fragment: Fragment) -> None:
            fragment.alive, fragment.dark = False, True

        return lambda f: f.alive, lose

    def _lose_power_unseen(self) -> Event:
        """And when a service looks again, the scheduler has given the node up."""

        def lose(fragment: Fragment) -> None:
            fragment.alive, fragment.dark = False, True
            self._forget(fragment)

        return lambda f: f.alive and f.known, lose

    def _miss_heartbeats(self) -> Event:
        return lambda f: f.dark and f.known, lambda f: setattr(f, "silent", True)

    def _ask_to_leave(self) -> Event:
        return lambda f: f.alive and not f.signalled, self._signal

    def _let_the_deadline_pass(self) -> Event:
        return lambda f: f.alive and f.signalled, Fragment.leave

    def _release(self) -> Event:
        return lambda f: f.known and not f.row.released, lambda f: setattr(f.row, "released", True)

    def _hang(self) -> Event:
        return lambda f: f.works and f.place != "warming", lambda f: setattr(f, "hung", True)

    def _break_a_connection(self) -> Event:
        return (
            lambda f: f.works and f.place == "training" and len(self.history[f.formed]) > 1,
            Fragment.breaks,
        )

    # The wires, and the ranks: one at a time, or all.

    @rule(step=st.sampled_from(STEPS), who=st.integers(0, MOST_FRAGMENTS))
    def move(self, step: str, who: int) -> None:
        can_move, act = {
            "warm_up": (lambda f: f.works and f.place == "warming", self._warm_up),
            "report": (lambda f: f.known and not f.dark, self._report),
            "deliver": (lambda f: f.alive, self._deliver),
            "advance": (lambda f: f.works, self._advance),
            "notice_a_break": (lambda f: f.works and f.place == "training", self._notice_sooner),
        }[step]
        names = [name for name, fragment in self.fragments.items() if can_move(fragment)]
        if names:
            act(self.fragments[names[who % len(names)]])

    @rule()
    def hear_from_everyone(self) -> None:
        for fragment in self.fragments.values():
            if fragment.known and not fragment.dark:
                self._report(fragment)
        self._turn()

    @rule()
    def tell_everyone(self) -> None:
        for fragment in self.fragments.values():
            if fragment.alive:
                self._deliver(fragment)

    @rule()
    def work_on(self) -> None:
        for fragment in self.fragments.values():
            if fragment.works:
                self._advance(fragment)
        self._switch()
        self._meet()

    # The service.

    @rule()
    def turn(self) -> None:
        self._turn()

    @rule()
    def let_time_pass(self) -> None:
        self.trainer.published_at = time.time() - 2 * REGROUP_TIMEOUT_S
        self._turn()

    @rule(
        course=st.lists(
            st.tuples(st.sampled_from(EVENTS), st.integers(0, MOST_FRAGMENTS), st.integers(0, 4)),
            min_size=1,
            max_size=4,
        ),
        newcomers=st.integers(0, 2),
    )
    def suffer(self, course: list[tuple[str, int, int]], newcomers: int) -> None:
        """A few events in a row, each answered to some extent before the next; then all calms down."""
        self.settle(all_notice=True)
        if newcomers:
            self.launch(newcomers)
        for event, who, extent in course:
            self.happen(event, who)
            for answer in (self.hear_from_everyone, self.tell_everyone, self.work_on, self.let_time_pass)[:extent]:
                answer()
        self.settle(all_notice=False)

    @rule(all_notice=st.booleans())
    def settle(self, all_notice: bool) -> None:
        """Once events stop and everyone answers, everyone who can train does, or as many as the trainer can
        have."""
        for fragment in self.fragments.values():
            fragment.alive = fragment.alive and not fragment.hung
        for _ in range(MOST_ROUNDS):
            before = self._state()
            self._round(all_notice)
            if self._state() == before:
                break
        else:
            raise AssertionError(f"no end of changes: {self._state()}")
        staying = {f.id for f in self.fragments.values() if f.alive and not f.row.released and not f.signalled}
        members = set(self.word.members)
        assert members <= staying, self._state()
        assert len(members) == max((n for n in self.sizes if n <= len(staying)), default=0), self._state()
        for name in members:
            fragment = self.fragments[name]
            assert (fragment.place, fragment.formed) == ("training", self.word.generation), self._state()
        gone = [f for f in self.fragments.values() if f.alive and f.id not in staying]
        assert gone == [], self._state()

    def teardown(self) -> None:
        if hasattr(self, "min_nodes"):
            self.settle(all_notice=False)

    @invariant()
    def nobody_is_a_member_twice(self) -> None:
        assert len(set(self.word.members)) == len(self.word.members)

    @invariant()
    def what_is_over_has_been_published(self) -> None:
        assert 0 <= self.word.ended_through <= self.word.generation

    @invariant()
    def no_other_number_of_members_is_published(self) -> None:
        assert len(self.word.members) in (0, *self.sizes)

    # How it all works.

    def _state(self) -> str:
        lines = [f"min_nodes {self.min_nodes}, {self.word}"]
        lines += [str(fragment) for fragment in self.fragments.values() if fragment.known]
        return "\n".join(lines)

    def _warm_up(self, fragment: Fragment) -> None:
        fragment.place, fragment.rank_phase = "waiting", Phase.READY
        self.clock += 1.0
        fragment.row.ready_at = self.clock

    def _signal(self, fragment: Fragment) -> None:
        fragment.signalled = True
        if not fragment.current:
            fragment.leave()
        elif len(fragment.current) == 1:
            fragment.closing = True

    def _report(self, fragment: Fragment) -> None:
        fragment.report = FragmentReport(
            phase=fragment.phase,
            sequence=0,
            pid=1,
            host="h",
            generation=fragment.told,
            broken=fragment.broken,
            signalled=fragment.signalled,
            holds=Held.RANKS if fragment.told else Held.NOWHERE,
        )

    def _deliver(self, fragment: Fragment) -> None:
        """The agent hears the newest word; its rank's second thread cuts what is over."""
        fragment.seen = word = self.word
        if fragment.id in word.members:
            fragment.current = word.members
        elif fragment.row.released and not fragment.current:
            fragment.leave()
        over = word.ended_through >= fragment.formed
        outrun = fragment.place == "forming" and word.generation > fragment.formed
        if fragment.place in ("forming", "training") and (over or outrun):
            fragment.broken, fragment.place = fragment.formed, "cut"

    def _advance(self, fragment: Fragment) -> None:
        """One thing that the rank does by itself."""
        if fragment.place == "cut":
            fragment.breaks()
        elif fragment.place == "forming":
            first = self.fragments[self.history[fragment.formed][0]]
            if not first.alive:
                fragment.breaks()
        elif fragment.place == "training" and fragment.closing:
            fragment.place = "waiting"
        elif fragment.place == "waiting":
            unwanted = fragment.row.released or bool(fragment.row.cause)
            named = fragment.id in fragment.seen.members
            if fragment.closing or (unwanted and not fragment.joined and not named and fragment.seen.generation):
                fragment.leave()
            elif fragment.usable():
                self._enter(fragment)

    def _enter(self, fragment: Fragment) -> None:
        if fragment.id in fragment.seen.members:
            fragment.place, fragment.formed = "forming", fragment.seen.generation
        elif fragment.row.released or fragment.row.cause or fragment.signalled:
            fragment.leave()
        else:
            fragment.formed, fragment.joined, fragment.rank_phase = fragment.seen.generation, False, Phase.READY
            fragment.current = ()

    def _group(self, generation: int) -> list[Fragment]:
        return [self.fragments[name] for name in self.history[generation]]

    def _notice(self, fragment: Fragment) -> None:
        """A collective fails at the neighbour of a process that has ended: one of the others at least."""
        group = self._group(fragment.formed)
        before = group[group.index(fragment) - 1]
        if not before.alive and not before.dark:
            fragment.breaks()

    def _notice_sooner(self, fragment: Fragment) -> None:
        """The luckier case: it fails where any peer has left the group."""
        for peer in self._group(fragment.formed):
            together = peer.alive and peer.place == "training" and peer.formed == fragment.formed
            if not together and not peer.dark:
                fragment.breaks()
                return

    def _meet(self) -> None:
        """A generation stands when all of its members are there."""
        for generation in {f.formed for f in self.fragments.values() if f.place == "forming"}:
            group = self._group(generation)
            if all(f.works and f.place == "forming" and f.formed == generation for f in group):
                for fragment in group:
                    fragment.place, fragment.rank_phase, fragment.told = "training", Phase.TRAINING, generation
                    fragment.joined = True

    def _switch(self) -> None:
        """Rank 0 has seen a newer generation: all leave the one they are in at the same step boundary."""
        for generation in {f.formed for f in self.fragments.values() if f.place == "training"}:
            group = self._group(generation)
            stands = all(f.works and f.place == "training" and f.formed == generation for f in group)
            if stands and group[0].seen.generation > generation:
                for fragment in group:
                    fragment.place, fragment.agreed = "waiting", group[0].seen.generation

    def _turn(self) -> None:
        """What `MembershipUpdater.turn` does with a live trainer."""
        now = self.trainer.revision
        here = [f for f in self.fragments.values() if f.known or f.ended_at_revision == now]
        rows = [fragment.row for fragment in here]
        reports = {fragment.id: fragment.report for fragment in here if fragment.report is not None}
        decision = self.keeper._decide(
            self.trainer, rows, reports, [fragment.id for fragment in here if fragment.silent], time.time()
        )
        if decision is None:
            return
        before = self.word
        self._check(decision, {name for name, report in reports.items() if report.phase is not Phase.LEFT})
        session: Any = NoDatabase()
        _publish(session, self.trainer, rows, decision, time.time())
        _give_up([row for row in rows if row.id in decision.lost], reports)
        assert self.word.ended_through >= before.ended_through
        assert self.word.generation == before.generation + (decision.members is not None)
        self.history[self.word.generation] = self.word.members
        # One that is wanted may be ready again, and be listed again.
        left = [self.fragments[name] for name in set(before.members) - set(self.word.members)]
        self.dropped |= {f.id for f in left if f.id in decision.lost or f.row.released or f.signalled}
        for name in decision.lost:
            fragment = self.fragments[name]
            if fragment.alive and not fragment.signalled:
                self._signal(fragment)  # its job is cancelled

    def _check(self, decision: Decision, alive: set[str]) -> None:
        before = self.word.members
        if decision.members is None:
            assert decision.ended_through > self.word.ended_through
            return
        survivors = [name for name in before if name in decision.members]
        newcomers = list(decision.members[len(survivors) :])
        assert list(decision.members[: len(survivors)]) == survivors
        assert newcomers == sorted(newcomers, key=lambda name: self.fragments[name].row.ready_at or 0.0)
        assert not self.dropped & set(decision.members), "a fragment that had left or was lost is back"
        assert set(decision.lost) <= set(before)
        assert not set(decision.lost) & set(decision.members)
        assert set(decision.members) <= alive
        assert len(decision.members) >= self.min_nodes or not decision.members
        if before and not decision.members and alive & set(before) - set(decision.lost):
            assert decision.saver in alive & set(before)

    def _round(self, all_notice: bool) -> None:
        """Everyone does what there is to do, and tells it."""
        for fragment in self.fragments.values():
            if fragment.works and fragment.place == "warming":
                self._warm_up(fragment)
            if fragment.alive:
                self._deliver(fragment)
            if fragment.works:
                self._advance(fragment)
                if fragment.place == "training":
                    (self._notice_sooner if all_notice else self._notice)(fragment)
        self._switch()
        self._meet()
        for fragment in self.fragments.values():
            fragment.silent = fragment.dark
            if fragment.alive:
                self._report(fragment)
            elif not fragment.dark:
                self._forget(fragment)
        self._turn()
        for fragment in self.fragments.values():
            if not fragment.alive:
                self._forget(fragment)


MembershipMachine.TestCase.settings = settings(
    max_examples=scaled(300),
    stateful_step_count=20,
    deadline=None,
    # Explaining a failure takes longer than finding it.
    phases=[phase for phase in HypothesisPhase if phase is not HypothesisPhase.explain],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestMembership = MembershipMachine.TestCase
