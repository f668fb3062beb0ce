"""Which idle nodes stay the longest: what is guessed at first, and what each kind of scheduler teaches."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from cells import each
from oakum_solver.node_preference import NodePreference

Choice = Callable[[list[int], dict[int, float], int], list[int]]
"""(idle nodes, since when each is idle, how many) -> the nodes that a scheduler takes."""


def lowest(idle: list[int], _: dict[int, float], count: int) -> list[int]:
    return idle[:count]


def highest(idle: list[int], _: dict[int, float], count: int) -> list[int]:
    return idle[::-1][:count]


def longest_idle(idle: list[int], since_s: dict[int, float], count: int) -> list[int]:
    return sorted(idle, key=lambda node: (since_s[node], node))[:count]


def small_ones_first(idle: list[int], _: dict[int, float], count: int) -> list[int]:
    """By weight: every third node is of the kind that jobs take first."""
    return sorted(idle, key=lambda node: (node % 3 != 0, node * 7919 % 40))[:count]


def watch(order: NodePreference, choice: Choice, takings: int, random: Random) -> dict[int, float]:
    """Half of the nodes are idle; each taken node is given back at some later time. Returns since when each
    idle node has been idle."""
    nodes = list(range(order.num_nodes))
    since_s = {node: float(node % 5) for node in nodes[: len(nodes) // 2 :]}
    busy = [node for node in nodes if node not in since_s]
    for now_s in range(10, 10 + takings):
        idle = sorted(since_s)
        taken = choice(idle, since_s, random.randint(1, 12))
        order.learn(
            np.array(idle), np.isin(idle, taken), np.array([since_s[node] for node in idle], dtype=np.float64)
        )
        random.shuffle(busy)
        came, busy = busy[: len(taken)], busy[len(taken) :] + taken
        since_s = {node: s for node, s in since_s.items() if node not in taken} | dict.fromkeys(came, float(now_s))
    return since_s


def ordered(order: NodePreference, since_s: dict[int, float]) -> list[int]:
    idle = np.array(sorted(since_s))
    return idle[order.order(idle, np.array([since_s[node] for node in sorted(since_s)]))].tolist()


def test_before_anything_is_known_the_last_of_the_list_comes_first() -> None:
    assert ordered(NodePreference(4), dict.fromkeys(range(4), 0.0)) == [3, 2, 1, 0]


@each("choice", [lowest, highest, longest_idle], ids=lambda choice: choice.__name__)
def test_what_a_scheduler_takes_last_comes_first(choice: Choice) -> None:
    order = NodePreference(40)
    since_s = watch(order, choice, 60, Random(1))
    assert ordered(order, since_s) == choice(sorted(since_s), since_s, len(since_s))[::-1] or (
        # Of nodes that have been idle for as long, either may come first.
        [since_s[node] for node in ordered(order, since_s)] == sorted(since_s.values(), reverse=True)
    )


def test_nodes_that_are_taken_first_whatever_their_place_come_last() -> None:
    order = NodePreference(40)
    since_s = watch(order, small_ones_first, 200, Random(2))
    preferred = [node % 3 == 0 for node in ordered(order, since_s)]
    assert preferred == sorted(preferred)
    assert 0 < sum(preferred) < len(preferred)


def test_a_scheduler_that_changes_its_ways_is_followed() -> None:
    order, random = NodePreference(40), Random(3)
    watch(order, lowest, 300, random)
    since_s = watch(order, highest, 500, random)
    assert ordered(order, since_s) == sorted(since_s)


@pytest.mark.parametrize("taken", [[], [0, 1, 2, 3]])
def test_none_taken_or_all_of_them_teaches_nothing(taken: list[int]) -> None:
    order = NodePreference(4)
    order.learn(np.arange(4), np.isin(np.arange(4), taken), np.zeros(4))
    fresh = NodePreference(4)
    assert (order.takings, order.right.tolist()) == (fresh.takings, fresh.right.tolist())
    assert order.expected.tolist() == [0.0] * 4


def test_nodes_that_are_alike_to_a_ranking_count_half_in_its_favour() -> None:
    """Both nodes have been idle for as long: age says nothing of who is taken."""
    order = NodePreference(2)
    for node in (0, 1, 0, 1):
        order.learn(np.arange(2), np.arange(2) == node, np.zeros(2))
    assert order.right[2] / order.takings == pytest.approx(0.5)
