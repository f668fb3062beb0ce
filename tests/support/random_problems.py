"""Small planning problems drawn at random, for the solver's property tests.

Drawn from a plain generator that Hypothesis seeds: that is quick and reaches odd corners soon, at the price that
a failing example is not made smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from string import ascii_lowercase

from hypothesis import strategies as st

from oakum_solver.objectives import Expression, NamedObjective, Objective
from oakum_solver.problem import PUBLISHED, Curve, NodeGroup, PlannedTrainer, Problem, Terms

LINEAR_OBJECTIVES: tuple[Objective, ...] = (
    NamedObjective.THROUGHPUT,
    NamedObjective.SPEEDUP,
    NamedObjective.WEIGHTED,
)
"""Those whose value is proportional to samples."""
OBJECTIVES: tuple[Objective, ...] = (
    *NamedObjective,
    Expression("weight * speedup * (1 + priority) + log1p(max(samples, 0)) / (1 + nodes)"),
    Expression("min(samples, 500) - 3 * nodes"),
)
EVERY_TERM = Terms(completion=True)
_SECONDS = (0.0, 1.0, 12.5, 40.0)
_DEPARTURES = ((30.0, None), (300.0, None), (math.inf, None), (45.0, "x"), (60.0, "x"), (600.0, "y"), (100.0, "z"))
_TYPES = ("cpu", "gpu")
_ACCESS = ("a", "b")
_USERS = ("ada", "bob")


def random_curve(random: Random, largest: int, smooth: bool = False) -> Curve:
    """A rising curve; `smooth`: as trainers' are, otherwise most of them neither concave nor convex."""
    if smooth:
        rate_one, power = 10 ** random.uniform(0, 3), random.uniform(0.5, 1.0)
        return Curve(tuple((nodes, rate_one * nodes**power) for nodes in range(1, largest + 1)))
    nodes = sorted(random.sample(range(1, largest + 1), random.randint(1, min(4, largest))))
    rates = sorted(random.choice((0.0, random.randint(0, 1000) / 4)) for _ in nodes)
    return Curve(tuple(zip(nodes, rates, strict=True)))


def random_trainer(
    random: Random, id_: str, largest: int, social: bool = False, typed: bool = False, smooth: bool = False
) -> PlannedTrainer:
    """`social`: with a priority, a user, a guarantee and an end; `typed`: most have curves on some types only, and
    some may have some nodes only."""
    min_nodes = random.choice((1, 1, 1, 2, 3, 4))
    settings: dict[str, object] = {}
    if social:
        settings = {
            "priority": random.choice((0, 0, 1)),
            "user": random.choice((None, *_USERS)),
            "guaranteed": random.random() < 0.3,
            "guaranteed_for_s": random.choice((0.0, 60.0, 600.0)),
            "waited_s": random.choice((0.0, 60.0, 3600.0)),
            "attained_samples": random.choice((0.0, 5e3)),
            "remaining_samples": random.choice((math.inf, 5e3, 50.0)),
            "deadline_in_s": random.choice((math.inf, 600.0, -5.0)),
        }
    if typed:
        types = random.choice((None, ("cpu",), ("gpu",), _TYPES, _TYPES))
        settings["curves_by_type"] = types and {name: random_curve(random, largest, smooth) for name in types}
        settings["mixes_types"] = random.random() < 0.5
        settings["access"] = random.choice((None, None, frozenset(_ACCESS), frozenset(random.choice(_ACCESS))))
    max_nodes = random.randint(min_nodes, max(min_nodes, largest))
    if random.random() < 0.3:
        between = range(1, max_nodes + 2)
        few = random.sample(between, random.randint(0, min(3, len(between))))
        settings["sizes"] = tuple(sorted({min_nodes, max_nodes, *few}))
    return PlannedTrainer(
        id_,
        random_curve(random, largest, smooth),
        min_nodes,
        max_nodes,
        weight=random.choice((0.0, 0.5, 1.0, 1.0, 3.0)),
        grow_stall_s=random.choice(_SECONDS),
        shrink_stall_s=random.choice(_SECONDS),
        startup_s=random.choice(_SECONDS),
        **settings,  # type: ignore[arg-type]
    )


def random_problem(
    random: Random,
    most_trainers: int = 4,
    most_nodes: int = 12,
    terms: Sequence[Terms] = (PUBLISHED, Terms(), EVERY_TERM),
    objectives: Sequence[Objective] = OBJECTIVES,
    departures: bool = True,
    social: bool = False,
    typed: bool = False,
    smooth: bool = False,
) -> Problem:
    """Any trainers hold any of the nodes, sizes outside the allowed ones included.

    `departures`: nodes leave at different times, some in cohorts; `social`: users have caps.
    """
    ids = ascii_lowercase[: random.randint(1, most_trainers)]
    owners = random.choice(((None,), (None, *ids), (None, None, *ids), ids))
    known = random.sample(_DEPARTURES, random.randint(1, 3)) if departures else [(math.inf, None)]
    members: dict[tuple[str | None, tuple[float, str | None], str, str], list[str]] = {}
    for number in range(random.randint(0, most_nodes)):
        node_type, access = (random.choice(_TYPES), random.choice("aab")) if typed else ("cpu", "")
        key = random.choice(owners), random.choice(known), node_type, access
        members.setdefault(key, []).append(f"n{number}")
    return Problem(
        tuple(random_trainer(random, id_, most_nodes, social, typed, smooth) for id_ in ids),
        tuple(
            NodeGroup(tuple(nodes), owner, horizon_s, node_type, cohort, access)
            for (owner, (horizon_s, cohort), node_type, access), nodes in members.items()
        ),
        look_ahead_s=random.choice((0.0, 30.0, 120.0, 120.0, 600.0)),
        objective=random.choice(objectives),
        terms=random.choice(terms),
        user_caps=_random_caps(random, most_nodes) if social else {},
    )


def _random_caps(random: Random, most_nodes: int) -> Mapping[str, int]:
    return {user: random.randint(0, most_nodes) for user in _USERS if random.random() < 0.4}


@st.composite
def problems(draw: st.DrawFn, /, **settings: object) -> Problem:
    """`random_problem` of these settings."""
    return random_problem(draw(st.randoms(use_true_random=True)), **settings)  # type: ignore[arg-type]
