"""Who is a member of a trainer's next generation: a pure function of what its fragments report.

Written as a decision over values so that every order of reports, losses and releases can be tried on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from oakum_worker.protocol import Phase

SAID_GOODBYE = (Phase.LEFT, Phase.FINISHED, Phase.FAILED)
"""Phases of a fragment that has gone in an orderly way: its connections are closed."""

_LOST = "lost"
_REGROUPED = "regrouped"
"""A connection between members has broken, with nobody known to be gone: a rank may have died and begun anew."""


@dataclass(frozen=True)
class FragmentView:
    """A fragment as the decision sees it."""

    id: str
    phase: Phase
    alive: bool
    """Its scheduler job exists and its agent is heard of."""
    released: bool = False
    """The plan no longer grants its node."""
    formed: int = 0
    """Newest generation its ranks have formed."""
    broken: int = 0
    """Newest generation that is unusable for its ranks."""
    ready_at: float = 0.0
    overdue: bool = False
    """It should have reacted to the newest generation, or to its end, and has not."""

    @property
    def stays(self) -> bool:
        """Whether it may be a member of the next generation."""
        return self.alive and not self.released and self.phase in (Phase.READY, Phase.TRAINING, Phase.BROKEN)


@dataclass(frozen=True)
class Membership:
    """A trainer's newest published generation."""

    generation: int
    members: tuple[str, ...]
    over: int


@dataclass(frozen=True)
class Decision:
    """What to publish. None as `members` publishes no new generation, only that those up to `over` are over."""

    members: tuple[str, ...] | None
    over: int
    closer: str | None = None
    lost: tuple[str, ...] = ()
    """Members that are gone or do not answer: their jobs are to be cancelled."""
    cause: str = ""


def decide(now: Membership, fragments: tuple[FragmentView, ...], min_nodes: int) -> Decision | None:
    """The change of membership that the reports call for, or None when all is well as it is."""
    by_id = {fragment.id: fragment for fragment in fragments}
    members = [by_id[member] for member in now.members if member in by_id]
    gone = tuple(member for member in now.members if member not in by_id or not by_id[member].alive)
    overdue = tuple(fragment.id for fragment in members if fragment.overdue)
    broken = any(fragment.broken >= now.generation for fragment in members if fragment.alive)
    over = now.generation if now.members and (gone or overdue or broken) else now.over
    lost = tuple(dict.fromkeys(gone + overdue))

    if over > now.over and not lost:
        # Ranks saw a connection break and nobody is known to be gone. Free the others from their collectives
        # first: whoever then does not say that it broke, too, is the one that is lost.
        return Decision(None, over, cause="a connection between members broke")
    if over == now.generation and now.members and not lost and not _all_broken(members, now.generation):
        return None
    before = max((fragment.broken for fragment in members if fragment.alive), default=0)
    before = max(before, _vanished(fragments, now.members))
    if now.over < before < now.generation:
        # Someone left the generation before this one in a hurry, and some of its ranks are still blocked in it.
        return Decision(None, before, cause="a connection between members broke")
    survivors = [fragment for fragment in members if fragment.stays and fragment.id not in lost]
    settled = over == now.generation or all(fragment.formed >= now.generation for fragment in members)
    newcomers = _newcomers(fragments, now.members) if settled else []
    if not any(fragment.formed for fragment in survivors) and _leaving_with_state(fragments):
        # Whoever came next would begin without what these know: they make it durable first.
        survivors, newcomers = [], []
    target = tuple(fragment.id for fragment in survivors + newcomers)
    if len(target) < min_nodes:
        target = ()
    if target == now.members and over < now.generation:
        return None
    if not target and not now.members:
        return None
    return Decision(
        members=target,
        over=over,
        closer=_closer(members, lost) if not target else None,
        lost=lost,
        cause=_cause(now, target, lost, broke=bool(now.members) and over == now.generation),
    )


def _all_broken(members: list[FragmentView], generation: int) -> bool:
    return all(
        fragment.broken >= generation or fragment.formed < generation or fragment.phase is Phase.LEAVING
        for fragment in members
        if fragment.alive
    )


def _vanished(fragments: tuple[FragmentView, ...], members: tuple[str, ...]) -> int:
    """Newest generation that somebody on the way out of it has vanished from without a word, or 0.

    A node that has lost power closes no connection: those still in that generation would wait for it for ever.
    """
    gone = [f for f in fragments if not f.alive and f.id not in members and f.phase not in SAID_GOODBYE]
    return max((fragment.formed for fragment in gone), default=0)


def _newcomers(fragments: tuple[FragmentView, ...], members: tuple[str, ...]) -> list[FragmentView]:
    ready = [f for f in fragments if f.stays and f.phase is Phase.READY and f.id not in members]
    return sorted(ready, key=lambda fragment: (fragment.ready_at, fragment.id))


def _leaving_with_state(fragments: tuple[FragmentView, ...]) -> bool:
    """Whether somebody is on the way out who has trained and has not said goodbye."""
    phases = (Phase.TRAINING, Phase.BROKEN, Phase.LEAVING)
    return any(f.alive and f.formed and not f.stays and f.phase in phases for f in fragments)


def _closer(members: list[FragmentView], lost: tuple[str, ...]) -> str | None:
    """The first member that is still there, and has trained, writes the checkpoint that ends training for now."""
    there = [fragment for fragment in members if fragment.alive and fragment.id not in lost]
    return next((f.id for f in sorted(there, key=lambda fragment: not fragment.formed)), None)


def _cause(now: Membership, target: tuple[str, ...], lost: tuple[str, ...], *, broke: bool) -> str:
    joined = len(set(target) - set(now.members))
    left = len(set(now.members) - set(target) - set(lost))
    parts = [(joined, "joined"), (left, "left"), (len(lost), _LOST)]
    said = [f"{count} {verb}" for count, verb in parts if count]
    return ", ".join(said if lost or not broke else [*said, _REGROUPED])


def is_unplanned(cause: str) -> bool:
    """Whether a decision of that cause was called for by something that went wrong."""
    return bool({_LOST, _REGROUPED} & set(re.findall(r"\w+", cause)))
