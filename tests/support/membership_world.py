"""The values of the membership model: a trainer's fragments, and what is published to them.

A state is worth 2 (the newest finished step), 1 (an older one) or 0 (none), in ranks, in agents' memory and on the
disk.
"""

from __future__ import annotations

from typing import NamedTuple

from oakum_worker.protocol import Held, Phase

Members = tuple[int, ...]
NEW, WARMING, WAITING, FORMING, SYNCING, TRAINING, GONE, DEAD = range(8)
"""Where a fragment is: not launched, building its task, between generations, meeting the others, taking the state
over, training; its agent has left in order, or without a word."""
HERE = (WARMING, WAITING, FORMING, SYNCING, TRAINING)

PHASES = tuple(Phase)
P_WARMING, P_READY, P_TRAINING, P_BROKEN, P_LEAVING, P_LEFT = (
    PHASES.index(phase)
    for phase in (Phase.WARMING, Phase.READY, Phase.TRAINING, Phase.BROKEN, Phase.LEAVING, Phase.LEFT)
)
"""Numbers, as enumerations are slow to hash."""
HELD = tuple(Held)
H_NOWHERE, H_MEMORY, H_RANKS = (HELD.index(held) for held in (Held.NOWHERE, Held.MEMORY, Held.RANKS))


class Word(NamedTuple):
    """The published generation that agents are told of."""

    generation: int = 0
    members: Members = ()
    ended_through: int = 0
    saver: int | None = None
    has_state: bool = False


class Told(NamedTuple):
    """The fields of a report that the decision uses."""

    phase: int
    generation: int
    broken: int
    holds: int


class Fragment(NamedTuple):
    """One fragment: its agent, its one rank, and what the service knows of it."""

    place: int = NEW
    state: int = 0
    copy: int = 0
    """In the agent's memory."""
    formed: int = 0
    """Newest generation that the rank has begun to form."""
    group: Members = ()
    """Its members, while the rank is in it."""
    expects_state: bool = False
    """Whether one of them should have the state."""
    told: int = 0
    """Newest generation that the rank has formed."""
    was_alone: bool = False
    """In that generation."""
    broken: int = 0
    agreed: int = 0
    has_joined: bool = False
    rank_phase: int = P_WARMING
    is_restarted: bool = False
    has_handed_over: bool = False
    """All have agreed at a step boundary to go on without it."""
    is_signalled: bool = False
    is_closing: bool = False
    seen: Word = Word()
    seen_leave: bool = False
    named_in: int = 0
    """Newest generation that the agent knows of in which it is named."""
    named_with: int = 0
    """How many members that one has."""
    report: Told | None = None
    """What has arrived."""
    is_released: bool = False
    is_ended: int = 0
    """1 from when the end of its job is known until something is published, 2 from then on."""
    is_given_up: bool = False
    ready: int = 0
    """Which one it was to become ready, counted from 1."""

    @property
    def is_here(self) -> bool:
        """Whether the fragment's agent lives."""
        return self.place in HERE

    @property
    def is_wanted(self) -> bool:
        """Whether the fragment is to train."""
        return self.is_here and not (self.is_released or self.is_signalled or self.is_given_up)

    def tells(self) -> Told:
        """The report that the fragment's agent sends now."""
        if self.place == GONE:
            phase = P_LEFT
        elif self.is_signalled or self.is_closing:
            phase = P_LEAVING
        else:
            phase = P_WARMING if self.place == WARMING else self.rank_phase
        held = H_RANKS if self.state and self.place != WARMING else H_NOWHERE
        if self.place == WARMING and self.copy:
            held = H_MEMORY
        return Told(phase, self.told, self.broken, held)

    def left(self) -> Fragment:
        """The fragment after its agent has sent its last report and exited: nothing is left on its node."""
        return self._replace(place=GONE, state=0, copy=0, group=())

    def broke(self, name: int) -> Fragment:
        """The fragment after its rank has seen its group break, or was told that the generation is over."""
        broken = self._replace(place=WAITING, group=(), broken=self.formed)
        return broken._replace(rank_phase=P_BROKEN) if self.has_joined else broken.ready_again(name)

    def ready_again(self, name: int) -> Fragment:
        """The fragment with its rank READY again, like one that was in no generation before."""
        kept = name in self.seen.members
        return self._replace(rank_phase=P_READY, named_in=self.named_in * kept, named_with=self.named_with * kept)


class World(NamedTuple):
    """Everything."""

    fragments: tuple[Fragment, ...]
    word: Word = Word()
    durable: int = 0

    def having(self, changes: dict[int, Fragment], **more: object) -> World:
        """A copy of the world with some fragments replaced."""
        fragments = tuple(changes.get(i, fragment) for i, fragment in enumerate(self.fragments))
        return self._replace(fragments=fragments, **more)  # type: ignore[arg-type]

    @property
    def num_wanted(self) -> int:
        """How many fragments are to train."""
        return sum(f.is_wanted for f in self.fragments)

    @property
    def is_fresh(self) -> bool:
        """Whether the newest finished step is held by any rank, agent or disk."""
        return self.durable == 2 or any(
            f.is_here and 2 in (f.state, f.copy) and not f.has_handed_over for f in self.fragments
        )


def training(num_members: int, num_fragments: int) -> World:
    """Some fragments in a generation that trains; the others have not been launched."""
    members = tuple(range(num_members))
    word = Word(1, members)
    fragments = [Fragment() for _ in range(num_fragments)]
    for i in members:
        fragment = Fragment(
            place=TRAINING,
            state=2,
            copy=2 if num_members == 1 else 0,
            formed=1,
            group=members,
            told=1,
            was_alone=num_members == 1,
            has_joined=True,
            rank_phase=P_TRAINING,
            seen=word,
            named_in=1,
            named_with=num_members,
            ready=i + 1,
        )
        fragments[i] = fragment._replace(report=fragment.tells())
    return World(tuple(fragments), word)
