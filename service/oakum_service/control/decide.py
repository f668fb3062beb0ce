"""Who is a member of a trainer's next generation: a pure function of what its fragments report.

`decide` asks the rules of `Situation` in order. Each rule is a property that can be read alone, with its reason.
Everything is a value, so that tests can try every order of reports, losses and releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from oakum_service.control.fragment_view import FragmentView, Membership
from oakum_worker.protocol import Phase

_CONNECTION_BROKE = "a connection between members broke"
_LOST = "lost"
_REGROUPED = "regrouped"
"""A connection between members broke and no member is known to be gone: a rank may have been restarted."""


@dataclass(frozen=True)
class Decision:
    """What to publish: a new generation, or, with None as `members`, only that generations have ended."""

    members: tuple[str, ...] | None
    ended_through: int
    """Every generation up to this one has ended."""
    saver: str | None = None
    """The fragment that writes a durable checkpoint before training pauses."""
    has_state: bool = False
    """Whether a member has the trainer's state."""
    lost: tuple[str, ...] = ()
    """Members that are gone or do not answer: their jobs are to be cancelled."""
    left_out: tuple[str, ...] = ()
    """Members that could train on, but are more than the trainer can use."""
    cause: str = ""


def decide(
    now: Membership,
    fragments: tuple[FragmentView, ...],
    min_nodes: int,
    sizes: tuple[int, ...] = (),
    max_nodes: int | None = None,
) -> Decision | None:
    """The change of membership that the reports call for, or None when nothing is to be changed yet. `sizes` are
    the only numbers of nodes that the members may have together, rising; every number will do where there are
    none. Nobody joins members that stay and have `max_nodes`."""
    situation = Situation(now, fragments, min_nodes, sizes, max_nodes)
    if situation.break_is_news:
        return Decision(None, now.generation, cause=_CONNECTION_BROKE)
    if situation.awaits_answers:
        return None
    if situation.older_break is not None:
        return Decision(None, situation.older_break, cause=_CONNECTION_BROKE)
    target = tuple(fragment.id for fragment in situation.next_members)
    if target == now.members and (not target or not situation.has_ended):
        return None
    left_out = tuple(fragment.id for fragment in situation.staying if target and fragment.id not in target)
    return Decision(
        members=target,
        ended_through=now.generation if situation.has_ended else now.ended_through,
        saver=None if target else situation.saver,
        has_state=_hold_state(situation.next_members),
        lost=situation.lost,
        left_out=left_out,
        cause=_cause(now, target, situation.lost, left_out, broke=bool(now.members) and situation.has_ended),
    )


@dataclass(frozen=True)
class Situation:
    """A trainer's membership, what is known of its fragments, and what follows from both, rule by rule."""

    now: Membership
    fragments: tuple[FragmentView, ...]
    min_nodes: int
    sizes: tuple[int, ...] = ()
    max_nodes: int | None = None

    @cached_property
    def members(self) -> tuple[FragmentView, ...]:
        """Members of the newest generation whose fragments are in `fragments`, in order of rank."""
        by_id = {fragment.id: fragment for fragment in self.fragments}
        return tuple(by_id[member] for member in self.now.members if member in by_id)

    @cached_property
    def lost(self) -> tuple[str, ...]:
        """Ids of members that are lost: first those that are gone, then those that are alive and have not answered
        in time."""
        alive = {member.id for member in self.members if member.alive}
        gone = [member for member in self.now.members if member not in alive]
        overdue = [member.id for member in self.members if member.overdue and member.alive]
        return (*gone, *overdue)

    @cached_property
    def present(self) -> tuple[FragmentView, ...]:
        """Members that are not lost."""
        return tuple(member for member in self.members if member.id not in self.lost)

    # When the newest generation, or the previous one, ends.

    @cached_property
    def is_broken(self) -> bool:
        """Whether a member says that the newest generation is unusable."""
        return any(member.alive and member.broken >= self.now.generation for member in self.members)

    @cached_property
    def has_ended(self) -> bool:
        """Whether the newest generation has ended. It ends when a member is lost, since collectives need all
        members, and when a connection breaks."""
        has_broken_down = bool(self.now.members) and (bool(self.lost) or self.is_broken)
        return has_broken_down or self.now.ended_through == self.now.generation

    @cached_property
    def break_is_news(self) -> bool:
        """Whether a connection of the newest generation broke, no member is known to be gone, and nobody was told.

        The other members are freed from their collectives first. A member that then does not report the break is
        the one that is lost.
        """
        return self.has_ended and self.now.ended_through < self.now.generation and not self.lost

    @cached_property
    def awaits_answers(self) -> bool:
        """Whether members were told that the newest generation has ended, and some still have to report its break.

        Once one member has formed the generation, all its members were in it, whatever they have reported until
        now, and may have the state. Without such a member, and from members that are leaving, no answer is needed.
        """
        if not self.now.members or not self.has_ended or self.lost:
            return False
        has_formed = any(member.formed >= self.now.generation for member in self.members)
        return has_formed and any(
            member.alive and member.broken < self.now.generation and member.phase is not Phase.LEAVING
            for member in self.members
        )

    @cached_property
    def older_break(self) -> int | None:
        """An older generation to be ended because ranks may be blocked in it while the newest forms, or None.

        Either a fragment reports that it broke, whether it is in the newest generation or training pauses or goes
        on without it, or a fragment that was about to leave it has vanished: a node that loses power closes no
        connection, and the ranks that are still in that generation would wait without end.
        """
        reported = [fragment.broken for fragment in self.fragments if fragment.alive]
        vanished = [f.formed for f in self.fragments if f.has_vanished and f.id not in self.now.members]
        newest = max((*reported, *vanished), default=0)
        return newest if self.now.ended_through < newest < self.now.generation else None

    # Who is in the next generation.

    @cached_property
    def is_settled(self) -> bool:
        """Whether the newest generation is no longer being formed: it has ended, or every member has formed it."""
        return self.has_ended or all(member.formed >= self.now.generation for member in self.members)

    @cached_property
    def newcomers(self) -> tuple[FragmentView, ...]:
        """Fragments that are ready and not members yet, in the order in which they became ready.

        While a generation forms they wait, unless they bring the state to members of which none has it.
        """
        ready = [f for f in self.fragments if f.stays and f.phase is Phase.READY and f not in self.members]
        if not self.is_settled:
            ready = [] if _hold_state(self.members) else [fragment for fragment in ready if fragment.holds]
        return tuple(sorted(ready, key=lambda fragment: (fragment.ready_at, fragment.id)))

    @cached_property
    def staying(self) -> tuple[FragmentView, ...]:
        """Members whose nodes nobody wants back."""
        return tuple(member for member in self.present if member.stays)

    @cached_property
    def not_needed(self) -> tuple[FragmentView, ...]:
        """Members whose nodes the plan wants back, if enough fragments to train remain without them; else
        empty."""
        if _slots((*self.staying, *self.newcomers)) < max(1, self.min_nodes):
            return ()
        return tuple(member for member in self.present if member.has_time)

    @cached_property
    def survivors(self) -> tuple[FragmentView, ...]:
        """Members that the next generation keeps, not considering who has the state.

        While a generation forms, members that only the plan lets go are kept: it is not known yet which members
        have formed it, and so have the state.
        """
        return self.staying if self.is_settled else self._staying_with(self.not_needed)

    @cached_property
    def next_members(self) -> tuple[FragmentView, ...]:
        """Members of the next generation, in order of rank; empty if training has to pause.

        Of more than the trainer can train on together, as many are members as it can, those with the state first,
        then survivors; the others wait until it can use them or the plan wants their nodes back. The successor of
        a fragment that reaches its time limit waits until that one is told to leave.

        If the survivors and newcomers lack the state while another fragment has it, they would begin from an older
        checkpoint. So members that hold the state and have time stay until the others have it, too. If there are
        no such members, training pauses: a fragment that has the state saves it first, or loads it from memory
        soon.
        """
        newcomers = self._joining()
        chosen = (*self.survivors, *newcomers)
        if self.state_exists and not _hold_state(chosen):
            bearers = [member for member in self.not_needed if member.holds]
            chosen = (*self._staying_with(bearers), *newcomers) if bearers else ()
        chosen = self._fitting(chosen)
        return chosen if _slots(chosen) >= self.min_nodes else ()

    def _joining(self) -> tuple[FragmentView, ...]:
        """The newcomers for whom the trainer has room, and those with the state."""
        if self.max_nodes is None:
            return self.newcomers
        joining: tuple[FragmentView, ...] = ()
        for newcomer in self.newcomers:
            if newcomer.holds or _slots((*self.survivors, *joining, newcomer)) <= self.max_nodes:
                joining = (*joining, newcomer)
        return joining

    def _fitting(self, chosen: tuple[FragmentView, ...]) -> tuple[FragmentView, ...]:
        """As many of them as the trainer can train on together, in the same order."""
        kept = sorted(chosen, key=lambda fragment: not fragment.holds)
        while kept and self.sizes and (slots := _slots(kept)) not in self.sizes:
            kept = _first_within(kept, max((size for size in self.sizes if size < slots), default=0))
        return tuple(fragment for fragment in chosen if fragment in kept)

    @cached_property
    def state_exists(self) -> bool:
        """Whether any fragment has the state, or will load it from its node's memory."""
        return any(fragment.alive and (fragment.holds or fragment.recalls) for fragment in self.fragments)

    @cached_property
    def saver(self) -> str | None:
        """The member that writes the checkpoint before training pauses: the first that has the state, else the
        first that is there."""
        there = sorted(self.present, key=lambda member: not member.holds)
        return there[0].id if there else None

    def _staying_with(self, kept: Iterable[FragmentView]) -> tuple[FragmentView, ...]:
        return tuple(member for member in self.present if member.stays or member in kept)


def _slots(fragments: Iterable[FragmentView]) -> int:
    return sum(fragment.slots for fragment in fragments)


def _first_within(fragments: Iterable[FragmentView], most: int) -> list[FragmentView]:
    """The first of the fragments that have at most so many slots together, without those that are too large."""
    kept: list[FragmentView] = []
    for fragment in fragments:
        if fragment.slots <= most:
            kept.append(fragment)
            most -= fragment.slots
    return kept


def _hold_state(fragments: Iterable[FragmentView]) -> bool:
    return any(fragment.holds for fragment in fragments)


def _cause(
    now: Membership, target: tuple[str, ...], lost: tuple[str, ...], left_out: tuple[str, ...], *, broke: bool
) -> str:
    num_joined = len(set(target) - set(now.members))
    num_left = len(set(now.members) - set(target) - set(lost) - set(left_out))
    counts = [(num_joined, "joined"), (num_left, "left"), (len(lost), _LOST), (len(left_out), "left out")]
    parts = [f"{count} {verb}" for count, verb in counts if count]
    return ", ".join(parts if lost or not broke else [*parts, _REGROUPED])


def is_unplanned(cause: str) -> bool:
    """Whether a decision with this cause followed from a fault: a lost member or a broken connection."""
    return bool({_LOST, _REGROUPED} & set(re.findall(r"\w+", cause)))
