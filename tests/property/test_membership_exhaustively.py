"""Searches every order in which things can happen to a few fragments, and checks every promise at each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pytest

import membership_model as model
from membership_canonical import canonical
from membership_model import Trainer
from membership_world import DEAD, GONE, P_BROKEN, P_READY, P_TRAINING, TRAINING, World, training


class Search:
    """All worlds that can come of one: those that take fewer events first, of these the nearest first."""

    def __init__(self, trainer: Trainer, min_nodes: int = 1) -> None:
        self._trainer = trainer
        self._min_nodes = min_nodes
        self._came_from: dict[World, tuple[str, World] | None] = {}
        self._onward: dict[World, World] = {}
        """What happens next if nothing else does."""
        self.num_moves = 0

    def run(self, start: World, most_events: int) -> int:
        """Search all worlds; returns their number. Raises `AssertionError`, with the events that led there, at
        the first broken promise."""
        start = canonical(start)
        self._came_from[start] = None
        frontier = [start]
        for num_events in range(most_events + 1):
            found = self._go_on(frontier)
            if num_events < most_events:
                frontier = [new for world in found for new in self._reach(world, model.events(world))]
        self._check_that_all_calms_down()
        return len(self._came_from)

    def _go_on(self, frontier: list[World]) -> list[World]:
        """All worlds that follow without another event."""
        found, waiting = [], deque(frontier)
        while waiting:
            world = waiting.popleft()
            found.append(world)
            moves = self._trainer.moves(world)
            if moves:
                self._onward[world] = canonical(moves[0][1])
            waiting.extend(self._reach(world, [*moves, *model.launches(world)]))
        return found

    def _reach(self, world: World, moves: Iterable[model.Move]) -> list[World]:
        """Those of the moves' results that are new."""
        new = []
        for name, after in moves:
            self.num_moves += 1
            if (broken := broken_promise(world, name, after, self._min_nodes)) is not None:
                raise AssertionError(f"{broken}:\n{self._way_to(world)}\n{name}\n{after}")
            after = canonical(after)
            if after not in self._came_from:
                self._came_from[after] = name, world
                new.append(after)
        return new

    def _way_to(self, world: World) -> str:
        lines = [str(world)]
        while (before := self._came_from[world]) is not None:
            name, world = before
            lines += [name, str(world)]
        return "\n".join(reversed(lines))

    def _check_that_all_calms_down(self) -> None:
        """Check that, from each world, once no more events happen, every wanted fragment trains in the end."""
        calm: set[World] = set()
        for world in list(self._came_from):
            way: dict[World, None] = {}
            at = world
            while at not in calm:
                assert at not in way, f"no end of changes:\n{self._way_to(world)}"
                way[at] = None
                after = self._onward.get(at)
                if after is None and (moves := self._trainer.moves(at)):
                    after = canonical(moves[0][1])
                if after is None:
                    assert is_at_rest(at, self._min_nodes), f"{at} is the end of\n{self._way_to(world)}"
                    break
                at = after
            calm.update(way)


def broken_promise(before: World, name: str, after: World, min_nodes: int) -> str | None:
    """Text about the promise that the move has broken; empty if none."""
    if name in model.LOSSES:
        return None
    if before.is_fresh and not after.is_fresh:
        return "the newest finished step is dropped though nothing was lost"
    if name == model.TRAINS and before.is_fresh:
        begun = [f for f, then in zip(before.fragments, after.fragments, strict=True) if f.place != then.place]
        if max(max(f.state for f in begun), 0 if any(f.state for f in begun) else before.durable) < 2:
            return "a generation begins without the newest finished step though somebody has it"
    if before.word.members and not after.word.members and is_disturbed_by_the_plan_alone(after, min_nodes):
        return "training is closed for a change that only the plan has made"
    if name not in model.ORDERS and after.num_wanted < before.num_wanted:
        return "somebody who is wanted is sent away"
    return None


def is_disturbed_by_the_plan_alone(world: World, min_nodes: int) -> bool:
    """Whether nobody is lost, killed or hurried, and enough who stay are known to be able to train."""
    known = {P_READY, P_TRAINING, P_BROKEN}
    able = sum(f.is_wanted and f.report is not None and f.report.phase in known for f in world.fragments)
    disturbed = any(
        f.is_signalled or f.is_restarted or (f.place in (GONE, DEAD) and not f.is_released)
        for f in world.fragments
    )
    return able >= min_nodes and not disturbed


def is_at_rest(world: World, min_nodes: int) -> bool:
    """Whether everybody who is wanted trains, as far as they are enough, and everybody else has gone."""
    wanted = {i for i, f in enumerate(world.fragments) if f.is_wanted}
    if any(f.is_here and not f.is_wanted for f in world.fragments):
        return False
    if len(wanted) < min_nodes:
        return not world.word.members
    at_work = {i for i, f in enumerate(world.fragments) if f.place == TRAINING}
    formed = {f.formed for f in world.fragments if f.place == TRAINING}
    return wanted == at_work == set(world.word.members) and formed <= {world.word.generation}


@pytest.mark.parametrize(
    ("num_members", "num_fragments", "most_events"),
    [
        (1, 2, 1),
        (3, 3, 1),
        (2, 2, 2),
        pytest.param(2, 3, 1, marks=pytest.mark.soak),
        pytest.param(4, 4, 1, marks=pytest.mark.soak),
    ],
)
def test_no_order_of_events_and_messages_breaks_a_promise(
    num_members: int, num_fragments: int, most_events: int
) -> None:
    """Of those that train already, and of others that are launched at any moment, some are lost, killed, preempted
    or released; messages may be as late as they like."""
    assert Search(Trainer()).run(training(num_members, num_fragments), most_events) > 300


@pytest.mark.parametrize(
    "num_members", [2, pytest.param(1, marks=pytest.mark.soak)], ids=["two train", "one joins"]
)
def test_no_two_events_break_a_promise_where_messages_come_soon(num_members: int) -> None:
    """They take less time than a rank to start."""
    assert Search(Trainer(is_prompt=True)).run(training(num_members, 2), most_events=2) > 5_000


@pytest.mark.parametrize(
    "is_prompt", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["messages come soon", "or late"]
)
def test_a_trainer_that_needs_several_nodes_waits_for_them_with_all_that_it_has(is_prompt: bool) -> None:
    trainer = Trainer(min_nodes=2, is_prompt=is_prompt)
    assert Search(trainer, min_nodes=2).run(training(2, 2), most_events=2) > 300
