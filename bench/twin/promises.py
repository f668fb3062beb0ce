"""What has to hold at any time in a run, whatever else: broken promises are collected as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sqlalchemy import select

from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.plans import PlanRecord
from oakum_service.documents.grant import Grant

_MOST_TOLD = 20


class Promises:
    """Notes each broken promise once."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def note(self, sentence: str) -> None:
        """A promise is broken."""
        if len(self.broken) < _MOST_TOLD and sentence not in self.broken:
            self.broken.append(sentence)

    def check_plan(self, plan: int, grants: Mapping[str, Grant]) -> None:
        """No node is granted to two trainers."""
        times = Counter(node for grant in grants.values() for node in grant.nodes)
        for node, number in times.items():
            if number > 1:
                self.note(f"plan {plan} grants {node} to {number} trainers")

    def check_fragments(self, readers: Sessions) -> None:
        """No node has two fragments that are to stay."""
        with readers.begin() as session:
            there = select(Fragment.node).where(Fragment.is_live, Fragment.released.is_(False))
            times = Counter(session.scalars(there))
        for node, number in times.items():
            if number > 1:
                self.note(f"{node} has {number} fragments")

    def check_end(self, readers: Sessions, at_scheduler: set[str], started: Iterable[str]) -> None:
        """Database and scheduler agree, and no fragment was started twice."""
        with readers.begin() as session:
            live = set(session.scalars(select(Fragment.id).where(Fragment.state == FragmentState.LIVE)))
            intended = set(session.scalars(select(Fragment.id).where(Fragment.state == FragmentState.INTENDED)))
        for fragment in sorted(live - at_scheduler):
            self.note(f"the database has fragment {fragment}, the scheduler has no job of it")
        for fragment in sorted(at_scheduler - live - intended):
            self.note(f"the scheduler has a job of fragment {fragment}, which is not live in the database")
        for fragment, number in Counter(started).items():
            if number > 1:
                self.note(f"fragment {fragment} was started {number} times")

    def check_wait(self, longest_s: float, within_s: float) -> None:
        """No foreground job is kept waiting for longer than the kill wait and what it takes to tell."""
        if longest_s > within_s:
            self.note(f"a foreground job waited {longest_s:.1f} s for us, and may wait {within_s:.1f} s")

    def check_starved(self, name: str, waited_s: float, within_s: float) -> None:
        """Nobody waits for nodes for longer than the guard allows while there are enough for all."""
        if waited_s > within_s:
            self.note(f"{name} has had no node for {waited_s:.0f} s although there was one for each trainer")


def newest_plan(readers: Sessions, known: int) -> tuple[int, Mapping[str, Grant]] | None:
    """The newest plan's number and grants; None if it is the plan `known`."""
    with readers.begin() as session:
        number = session.execute(select(PlanRecord.id).order_by(PlanRecord.id.desc()).limit(1)).scalar()
        if number is None or number == known:
            return None
        return number, session.get_one(PlanRecord, number).allocations
