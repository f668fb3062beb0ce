"""The rules by which a trainer's fragments, and what is published to them, change, for a search of all that can
happen.

The service's part is the real one, `view` and `decide`, and so is a rank's choice of what to answer to. What else
agents and ranks do is told here as `fragment.agent` and `rank.process` of the worker do it, without time, torch or
processes: a move is one thing that one of them does, and moves may follow each other in any order. Reports and
directives are level-triggered; delivering one brings the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache

from membership_world import (
    DEAD,
    FORMING,
    GONE,
    H_NOWHERE,
    HELD,
    NEW,
    P_READY,
    P_TRAINING,
    P_WARMING,
    PHASES,
    SYNCING,
    TRAINING,
    WAITING,
    WARMING,
    Fragment,
    Told,
    Word,
    World,
)
from oakum_service.control.decide import Decision, decide
from oakum_service.control.fragment_view import SAID_GOODBYE, Known, Late, Membership, view
from oakum_worker.protocol import Directive, FragmentReport, Generation, Member
from oakum_worker.rank.membership import calls_for_an_answer, is_sent_away

TRAINS = "a generation trains"
LOSSES = ("a rank is killed", "a node is lost")
ORDERS = ("the scheduler wants a node", "the plan releases a node")
SOON = (
    "a report arrives",
    "all reports arrive",
    "a directive arrives",
    "the service decides",
    "a connection breaks",
    "a job's end is known",
)

Move = tuple[str, World]


class Trainer:
    """The rules by which one world becomes another."""

    def __init__(self, min_nodes: int = 1, *, is_prompt: bool = False) -> None:
        """`is_prompt`: messages arrive sooner than a rank is ready, for which it takes seconds."""
        self._min_nodes = min_nodes
        self._is_prompt = is_prompt
        self._decide = lru_cache(maxsize=None)(self._decide_anew)

    def moves(self, world: World) -> list[Move]:
        """Everything that can happen next by itself, and what ranks do at once when it has."""
        return [(name, _react(after)) for name, after in self._moves(world)]

    def _moves(self, world: World) -> list[Move]:
        moves = [*self._communicate(world), *_in_groups(world)]
        for i, fragment in enumerate(world.fragments):
            moves += _alone(world, i, fragment)
        is_calm = not any(name in SOON for name, _ in moves)
        if is_calm or not self._is_prompt:
            moves += _get_ready(world)
        if is_calm:
            # The service knows and answers sooner than those give up who have been told to leave.
            moves += _give_up_waiting(world)
        if not moves and (after := self._turn(world, Late(answer=True))) is not None:
            moves.append(("time passes", after))
        return moves

    def _communicate(self, world: World) -> Iterator[Move]:
        """The service answers each report at once, or all that have come together."""
        reports = {}
        for i, fragment in enumerate(world.fragments):
            if fragment.place in (NEW, DEAD) or fragment.is_ended:
                continue
            if (tells := fragment.tells()) != fragment.report:
                reports[i] = fragment._replace(report=tells)
                yield "a report arrives", self._answer(world.having({i: reports[i]}))
            hears = (world.word, _is_unwanted(fragment)) != (fragment.seen, fragment.seen_leave)
            if fragment.is_here and hears:
                yield "a directive arrives", world.having({i: _obey(i, fragment, world.word)})
        if len(reports) > 1:
            yield "all reports arrive", self._answer(world.having(reports))
        if (after := self._turn(world, Late())) is not None:
            yield "the service decides", after

    def _answer(self, world: World) -> World:
        while (after := self._turn(world, Late())) is not None:
            world = after
        return world

    def _turn(self, world: World, late: Late) -> World | None:
        word = world.word
        facts = tuple(
            (i, f.report, f.ready, f.is_released, f.is_ended > 0, f.is_given_up)
            for i, f in enumerate(world.fragments)
            if f.report is not None and f.is_ended < 2
        )
        decision = self._decide(word, facts, late)
        if decision is None:
            return None
        over = max(word.ended_through, decision.ended_through)
        if decision.members is None:
            after = word._replace(ended_through=over)
        else:
            members = tuple(int(member) for member in decision.members)
            saver = None if decision.saver is None else int(decision.saver)
            after = Word(word.generation + 1, members, over, saver, decision.has_state)
        changes = {i: f._replace(is_ended=2) for i, f in enumerate(world.fragments) if f.is_ended == 1}
        for i in map(int, decision.lost):
            fragment = changes.get(i, world.fragments[i])
            if fragment.report is not None and PHASES[fragment.report.phase] not in SAID_GOODBYE:
                changes[i] = fragment._replace(is_given_up=True)
        return world.having(changes, word=after)

    def _decide_anew(
        self,
        word: Word,
        facts: tuple[tuple[int, Told, int, bool, bool, bool], ...],
        late: Late,
    ) -> Decision | None:
        now = Membership(word.generation, tuple(map(str, word.members)), word.ended_through)
        views = []
        for i, told, ready, released, ended, given_up in facts:
            known = Known(str(i), float(ready), released=released, ended=ended, given_up=given_up)
            views.append(view(now, known, _report(told), late))
        return decide(now, tuple(views), self._min_nodes)


@cache
def _report(told: Told) -> FragmentReport:
    return FragmentReport(
        phase=PHASES[told.phase],
        sequence=0,
        pid=1,
        host="h",
        generation=told.generation,
        broken=told.broken,
        holds=HELD[told.holds],
    )


@cache
def _directive(word: Word, leave: bool) -> Directive:
    members = tuple(Member(fragment=str(i), node=str(i), ranks=()) for i in word.members)
    generation = Generation(number=word.generation, members=members) if word.generation else None
    return Directive(revision=0, generation=generation, ended_through=word.ended_through, leave=leave)


def _is_unwanted(fragment: Fragment) -> bool:
    """`directives.read_directive`."""
    return fragment.is_released or fragment.is_given_up


def _obey(i: int, fragment: Fragment, word: Word) -> Fragment:
    """What `Agent._on_directive` and the rank's command thread do with the newest directive."""
    fragment = fragment._replace(seen=word, seen_leave=_is_unwanted(fragment))
    if i in word.members:
        if fragment.place == WARMING and fragment.is_restarted:
            fragment = fragment._replace(broken=word.generation, formed=word.generation)
        else:
            fragment = fragment._replace(named_in=word.generation, named_with=len(word.members))
    elif fragment.seen_leave and not fragment.named_in:
        if fragment.tells().holds == H_NOWHERE:
            return fragment.left()
        fragment = fragment._replace(is_closing=True)
    if word.saver == i and fragment.is_signalled:
        fragment = fragment._replace(is_closing=True)
    over = fragment.place in (FORMING, SYNCING, TRAINING) and word.ended_through >= fragment.formed
    outrun = fragment.place == FORMING and word.generation > fragment.formed
    return fragment.broke(i) if over or outrun else fragment


def _alone(world: World, i: int, fragment: Fragment) -> Iterator[Move]:
    """The worlds that follow when fragment i acts by itself."""
    if fragment.place in (GONE, DEAD) and not fragment.is_ended:
        yield "a job's end is known", world.having({i: fragment._replace(is_ended=1)})
    elif fragment.is_closing and fragment.is_here and fragment.place != WARMING:
        durable = max(world.durable, fragment.state)
        yield "a rank closes", world.having({i: fragment.left()}, durable=durable)
    elif fragment.place in (FORMING, SYNCING, TRAINING) and _sees_a_break(world, fragment):
        yield "a connection breaks", world.having({i: fragment.broke(i)})


def _get_ready(world: World) -> Iterator[Move]:
    for i, fragment in enumerate(world.fragments):
        if fragment.place == WARMING:
            yield "a rank is ready", world.having({i: _ready(world, fragment)})


def _ready(world: World, fragment: Fragment) -> Fragment:
    ready = fragment.ready or 1 + max(f.ready for f in world.fragments)
    state = 0 if world.durable > fragment.copy else fragment.copy
    return fragment._replace(place=WAITING, rank_phase=P_READY, state=state, ready=ready)


def _react(world: World) -> World:
    """The world after ranks have done what they do at once: answer directives, and form a group that is
    complete."""
    while (after := _reaction(world)) is not None:
        world = after
    return world


def _reaction(world: World) -> World | None:
    for i, fragment in enumerate(world.fragments):
        if fragment.place == WAITING and not fragment.is_closing and (after := _answer(world, i, fragment)):
            return after
    for group in {f.group for f in world.fragments if f.place == FORMING}:
        members = {i: world.fragments[i] for i in group}
        if len({(f.place, f.formed) for f in members.values()}) == 1:
            return _meet(world, members)
    return None


def _answer(world: World, i: int, fragment: Fragment) -> World | None:
    """What the rank does after `membership.next_generation` has chosen a generation."""
    seen = fragment.seen
    directive = _directive(seen, fragment.seen_leave)
    newest = max(fragment.formed, fragment.agreed - 1)
    if not calls_for_an_answer(directive, str(i), newest, member=fragment.has_joined):
        return None
    if is_sent_away(directive, str(i), member=fragment.has_joined):
        return world.having({i: fragment.left()}, durable=max(world.durable, fragment.state))
    if i in seen.members:
        forming = fragment._replace(
            place=FORMING,
            formed=seen.generation,
            group=seen.members,
            expects_state=seen.has_state,
            has_handed_over=False,
        )
        return world.having({i: forming})
    falls_here = seen.saver == i or fragment.agreed <= fragment.formed
    durable = max(world.durable, fragment.state if falls_here else 0)
    if fragment.seen_leave or fragment.is_signalled:
        return world.having({i: fragment.left()}, durable=durable)
    waits = fragment._replace(formed=seen.generation, has_joined=False, has_handed_over=False).ready_again(i)
    return world.having({i: waits}, durable=durable)


def _meet(world: World, members: dict[int, Fragment]) -> World:
    """What `Keeper.begin` does: the worlds after the ranks of a generation have met, where a state is either
    whole or absent."""
    best = max(f.state for f in members.values())
    if best == 0 and any(f.expects_state for f in members.values()):
        return world.having({i: f.broke(i) for i, f in members.items()})
    return world.having(
        {i: f._replace(place=SYNCING, state=f.state * (f.state == best)) for i, f in members.items()}
    )


def _sees_a_break(world: World, fragment: Fragment) -> bool:
    if fragment.place == FORMING:
        return not world.fragments[fragment.group[0]].is_here
    peers = [world.fragments[peer] for peer in fragment.group]
    return any(peer.place not in (SYNCING, TRAINING) or peer.formed != fragment.formed for peer in peers)


def _in_groups(world: World) -> Iterator[Move]:
    """The worlds that follow when the ranks of a generation act together."""
    for group in {f.group for f in world.fragments if f.place in (SYNCING, TRAINING)}:
        members = {i: world.fragments[i] for i in group}
        if len({(f.place, f.formed) for f in members.values()}) > 1:
            continue
        first = members[group[0]]
        if first.place == SYNCING:
            yield TRAINS, _train(world, members)
        elif (agreed := first.seen.generation) > first.formed:
            switch = {
                i: f._replace(
                    place=WAITING,
                    group=(),
                    agreed=agreed,
                    has_handed_over=bool(first.seen.members) and i not in first.seen.members,
                )
                for i, f in members.items()
            }
            yield "ranks agree to switch", world.having(switch)


def _train(world: World, members: dict[int, Fragment]) -> World:
    """The generation has the newest state there is among its members, and has taken steps: all others' is old."""
    is_alone = len(members) == 1
    changes = {
        i: f._replace(
            place=TRAINING,
            state=2,
            copy=2 if is_alone else 0,
            told=f.formed,
            was_alone=is_alone,
            has_joined=True,
            rank_phase=P_TRAINING,
        )
        for i, f in members.items()
    }
    older = {
        i: f._replace(state=min(f.state, 1), copy=min(f.copy, 1))
        for i, f in enumerate(world.fragments)
        if i not in members
    }
    return world.having(changes | older, durable=min(world.durable, 1))


def _give_up_waiting(world: World) -> Iterator[Move]:
    """`Agent._on_deadline`."""
    for i, fragment in enumerate(world.fragments):
        if fragment.is_here and fragment.is_signalled and not fragment.is_closing:
            is_last = fragment.was_alone or fragment.broken >= fragment.told
            if is_last and fragment.tells().holds != H_NOWHERE:
                after = fragment._replace(is_closing=True)
            else:
                after = fragment.left()
            yield "the time to leave is up", world.having({i: after})


def launches(world: World) -> list[Move]:
    """Fragments that are alike are launched one after the other."""
    for i, fragment in enumerate(world.fragments):
        if fragment.place == NEW:
            return [("a node is launched on", world.having({i: fragment._replace(place=WARMING)}))]
    return []


def events(world: World) -> Iterator[Move]:
    """Everything else that the world can do to the trainer."""
    for i, fragment in enumerate(world.fragments):
        if not fragment.is_here:
            continue
        yield LOSSES[0], world.having({i: _killed(fragment)})
        yield LOSSES[1], world.having({i: fragment.left()._replace(place=DEAD)})
        if not fragment.is_signalled:
            yield ORDERS[0], world.having({i: _signalled(i, fragment)})
        if not fragment.is_released:
            yield ORDERS[1], world.having({i: fragment._replace(is_released=True)})


def _killed(fragment: Fragment) -> Fragment:
    """The fragment after its rank was killed, as `Agent._on_exit` decides: the rank is restarted once, unless the
    fragment leaves its node."""
    leaves = fragment.is_signalled or fragment.is_closing or fragment.seen_leave
    if fragment.place == WARMING or fragment.is_restarted or leaves:
        return fragment.left()
    newest = max(fragment.told, fragment.named_in)
    return fragment._replace(
        place=WARMING,
        state=0,
        formed=newest,
        group=(),
        broken=newest,
        agreed=0,
        has_joined=False,
        rank_phase=P_WARMING,
        is_restarted=True,
        named_in=0,
        named_with=0,
    )


def _signalled(i: int, fragment: Fragment) -> Fragment:
    """`Agent._on_leave`."""
    if not fragment.named_in and fragment.tells().holds == H_NOWHERE:
        return fragment.left()
    last = not fragment.named_in or fragment.named_with == 1 or fragment.seen.saver == i
    return fragment._replace(is_signalled=True, is_closing=fragment.is_closing or last)
