"""A trainer's fragments as the decision about its membership sees them."""

from __future__ import annotations

from dataclasses import dataclass

from oakum_worker.protocol import FragmentReport, Held, Phase

SAID_GOODBYE = (Phase.LEFT, Phase.FINISHED, Phase.FAILED)
"""Phases in which a fragment has left in order: its connections are closed."""


@dataclass(frozen=True)
class FragmentView:
    """What `decide` needs to know of one fragment."""

    id: str
    phase: Phase
    alive: bool
    """Whether its scheduler job exists and its agent still reports."""
    released: bool = False
    """Whether the plan no longer grants its node."""
    hurried: bool = False
    """Whether the fragment leaves soon, whatever is decided: the scheduler takes its node, or it is leaving."""
    holds: bool = False
    """Whether its ranks have the trainer's state, or their part of it, now."""
    recalls: bool = False
    """Whether its ranks are being restarted and will load the state from their node's memory."""
    formed: int = 0
    """Newest generation that the fragment has formed, with its present ranks or with earlier ones."""
    broken: int = 0
    """Newest generation that is unusable for its ranks."""
    ready_at: float = 0.0
    slots: int = 1
    """How many nodes it counts for: slots of its node."""
    overdue: bool = False
    """Whether the fragment should have answered to the newest generation, or to its end, and has not."""

    @property
    def can_be_member(self) -> bool:
        """Whether its ranks can form a generation."""
        return self.alive and self.phase in (Phase.READY, Phase.TRAINING, Phase.BROKEN)

    @property
    def stays(self) -> bool:
        """Whether the fragment can be a member of the next generation and nobody wants its node back."""
        return self.can_be_member and not self.released and not self.hurried

    @property
    def has_time(self) -> bool:
        """Whether only the plan wants its node back: the fragment can still be a member for a while."""
        return self.can_be_member and self.released and not self.hurried

    @property
    def has_vanished(self) -> bool:
        """Whether the fragment is gone and did not say so: its connections may still look open to others."""
        return not self.alive and self.phase not in SAID_GOODBYE


@dataclass(frozen=True)
class Membership:
    """A trainer's newest published generation."""

    generation: int
    members: tuple[str, ...]
    ended_through: int
    """Every generation up to this one has ended."""


@dataclass(frozen=True)
class Known:
    """What the service knows of a fragment apart from its agent's reports."""

    id: str
    ready_at: float = 0.0
    slots: int = 1
    released: bool = False
    preempted: bool = False
    """Whether the scheduler says that it takes the node; the agent may not know this yet."""
    ended: bool = False
    """Whether its scheduler job has ended."""
    given_up: bool = False
    silent: bool = False


@dataclass(frozen=True)
class Late:
    """Which deadlines have passed since the newest generation was published."""

    answer: bool = False
    """Whether the time is over in which members have to form the generation, or report the previous one as
    broken."""
    recall: bool = False
    """Whether the deadline for a restarted rank to load the state from its node's memory has passed."""


def view(now: Membership, fragment: Known, report: FragmentReport, late: Late) -> FragmentView:
    """The fragment as `decide` sees it, from what the service knows of it, what its agent reports, and which
    deadlines have passed."""
    # A planned change waits for a step to end, which may take long; after a loss there is nothing to wait for.
    after_a_loss = now.ended_through >= now.generation - 1 and now.ended_through > 0
    answered = report.generation >= now.generation or report.broken >= now.generation
    gone = report.phase in SAID_GOODBYE or fragment.silent or fragment.given_up or fragment.ended
    return FragmentView(
        id=fragment.id,
        phase=report.phase,
        alive=not gone,
        released=fragment.released,
        hurried=fragment.preempted or report.phase is Phase.LEAVING,
        holds=_holds(report),
        recalls=report.holds is Held.MEMORY and not late.recall,
        formed=report.generation,
        broken=report.broken,
        ready_at=fragment.ready_at,
        slots=fragment.slots,
        overdue=late.answer and after_a_loss and not answered,
    )


def _holds(report: FragmentReport) -> bool:
    if report.holds is not None:
        return report.holds is Held.RANKS
    # Agents of older versions do not report this. A fragment that is ready after a generation was restarted, so it
    # has no state.
    return report.generation > 0 and report.phase not in (Phase.WARMING, Phase.READY)
