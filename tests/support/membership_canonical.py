"""One world of the membership model for all that differ in nothing that matters, so that a search sees it once."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter

from membership_world import DEAD, GONE, HERE, NEW, P_LEFT, Fragment, Told, Word, World

_FORGOTTEN = Fragment(place=DEAD, is_ended=2)


@lru_cache(maxsize=100_000)
def canonical(world: World) -> World:
    """The same for worlds that differ only in their fragments' names, in generations' numbers, and in what nobody
    looks at any more; one of them."""
    word = world.word
    kept = [_looked_at(world, i, f) for i, f in enumerate(world.fragments)]
    place = {member: position for position, member in enumerate(word.members)}
    order = sorted(range(len(kept)), key=lambda i: _key(i, kept[i], place))
    new = {old: name for name, old in enumerate(order)}
    number = _numbers(word, kept)
    readies = {ready: at for at, ready in enumerate(sorted({0} | {f.ready for f in kept}))}
    fragments = []
    for i in order:
        f = kept[i]
        report = f.report
        if report is not None:
            report = Told(report.phase, number[report.generation], number[report.broken], report.holds)
        fragments.append(
            f._replace(
                formed=number[f.formed],
                told=number[f.told],
                broken=number[f.broken],
                agreed=number[f.agreed],
                named_in=number[f.named_in],
                group=tuple(new[member] for member in f.group),
                seen=_renamed(f.seen, new, number),
                report=report,
                ready=readies[f.ready],
            )
        )
    return World(tuple(fragments), _renamed(word, new, number), world.durable)


def _looked_at(world: World, i: int, f: Fragment) -> Fragment:
    if f.place in HERE:
        past = f.seen.generation <= max(f.formed, f.agreed - 1) and f.seen.saver != i
        if past and f.has_joined and f.seen != world.word:
            return f._replace(seen=Word())
        return f
    if f.place == NEW:
        return f
    said = f.report is not None and f.report.phase == P_LEFT
    if (said or f.is_ended == 2) and i not in world.word.members:
        return _FORGOTTEN
    return Fragment(
        place=f.place,
        told=f.told if f.place == GONE else 0,
        broken=f.broken if f.place == GONE else 0,
        report=f.report,
        is_ended=f.is_ended,
        is_given_up=f.is_given_up,
    )


def _numbers(word: Word, fragments: list[Fragment]) -> dict[int, int]:
    """Generation -> another number in the same order; neighbours stay neighbours."""
    found = {0, word.generation, word.ended_through}
    for f in fragments:
        found.update((f.formed, f.told, f.broken, f.agreed, f.named_in, f.seen.generation, f.seen.ended_through))
        if f.report is not None:
            found.update((f.report.generation, f.report.broken))
    number, last, at = {}, 0, 0
    for generation in sorted(found):
        at += min(generation - last, 2)
        number[generation] = at
        last = generation
    return number


def _renamed(word: Word, new: dict[int, int], number: dict[int, int]) -> Word:
    members = tuple(new[member] for member in word.members)
    saver = None if word.saver is None else new[word.saver]
    return Word(number[word.generation], members, number[word.ended_through], saver, word.has_state)


_scalars = itemgetter(*(at for at, name in enumerate(Fragment._fields) if name not in ("group", "seen", "report")))


def _key(i: int, f: Fragment, place: dict[int, int]) -> tuple[object, ...]:
    group = f.group.index(i) if i in f.group else -1
    seen = f.seen
    named = seen.members.index(i) if i in seen.members else -1
    return (
        place.get(i, 9),
        f.ready,
        _scalars(f),
        f.report or (),
        group,
        (seen.generation, seen.ended_through, len(seen.members), named, seen.saver == i),
    )
