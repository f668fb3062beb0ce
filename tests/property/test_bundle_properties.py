"""Plans for trainers whose fragments have several slots of one host, held against every way to give slots out."""

import itertools
import math
from collections.abc import Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from num_examples import scaled
from oakum_solver.bundles import possible_sizes
from oakum_solver.errors import InfeasiblePlanError
from oakum_solver.plan import Allocation, Plan, Reason, Why
from oakum_solver.problem import Bundle, Host, NodeGroup, PlannedTrainer, Problem, Terms
from oakum_solver.solve import POLICIES, Policy, solve
from oakum_solver.value import ValueModel
from oakum_solver.verify import verify
from random_problems import LINEAR_OBJECTIVES, random_curve

_SECONDS = (0.0, 1.0, 40.0)
_NO_REASON = Reason(Why.UNEXPLAINED, "")


def random_bundled(random: Random, most_slots: int) -> Problem:
    """A few hosts of up to 4 slots, some of them idle, held in whole bundles or free."""
    ids = "ab"
    wanted: dict[str, Bundle] = {id_: random.choice((1, 2, 2, 3, "host")) for id_ in ids}
    owned: dict[str | None, list[str]] = {None: [], "a": [], "b": []}
    hosts: list[Host] = []
    left = most_slots
    while left > 0:
        size = random.randint(1, 4)
        idle = [f"n{len(hosts)}:{slot}" for slot in range(size)][: min(left, random.choice((size, size, 2)))]
        left -= len(idle)
        bundles, rest = [], list(idle)
        for id_ in random.sample(ids, 2):
            bundle = size if wanted[id_] == "host" else wanted[id_]
            if isinstance(bundle, int) and len(rest) >= bundle and random.random() < 0.5:
                bundles.append(tuple(rest[:bundle]))
                owned[id_] += rest[:bundle]
                rest = rest[bundle:]
        owned[None] += rest
        hosts.append(Host(tuple(idle), size, tuple(bundles)))
    trainers = []
    for id_ in ids:
        sizes = possible_sizes(wanted[id_], hosts, most_slots) or (most_slots + 1,)
        trainers.append(
            PlannedTrainer(
                id_,
                random_curve(random, most_slots),
                sizes[0],
                sizes[-1],
                sizes,
                weight=random.choice((0.5, 1.0, 3.0)),
                grow_stall_s=random.choice(_SECONDS),
                shrink_stall_s=random.choice(_SECONDS),
                startup_s=random.choice(_SECONDS),
                bundle=wanted[id_],
            )
        )
    groups = tuple(NodeGroup(tuple(nodes), owner) for owner, nodes in owned.items() if nodes)
    objective = random.choice(LINEAR_OBJECTIVES)
    return Problem(tuple(trainers), groups, terms=Terms(), objective=objective, hosts=tuple(hosts))


def every_plan(problem: Problem) -> Iterator[Plan]:
    """Every plan that obeys the rules, by looking at every way to give the slots out."""
    model = ValueModel(problem)
    nodes = [node for group in problem.groups for node in group.nodes]
    ids = [trainer.id for trainer in problem.trainers]
    for owners in itertools.product((None, *ids), repeat=len(nodes)):
        grants = {id_: tuple(n for n, o in zip(nodes, owners, strict=True) if o == id_) for id_ in ids}
        compositions = [{0: len(grants[id_])} if grants[id_] else {} for id_ in ids]
        value = math.fsum(model.values(compositions))
        allocations = tuple(Allocation(id_, grants[id_], _NO_REASON) for id_ in ids)
        plan = Plan(allocations, value, bound=math.inf, solver="exact", solve_s=0.0, optimal=False)
        try:
            verify(problem, plan)
        except InfeasiblePlanError:
            continue
        yield plan


@settings(max_examples=scaled(25), deadline=None)
@given(st.randoms(use_true_random=True))
def test_a_plan_in_bundles_is_worth_the_optimum(random: Random) -> None:
    problem = random_bundled(random, 6)
    plan = solve(problem)
    best = max(every_plan(problem), key=lambda each: each.value)
    assert math.isclose(plan.value, best.value, rel_tol=1e-6, abs_tol=1e-6), (plan, best)
    assert plan.optimal


@settings(max_examples=scaled(50), deadline=None)
@given(st.randoms(use_true_random=True), st.sampled_from(POLICIES))
def test_every_policy_keeps_to_bundles_and_names_a_bound(random: Random, policy: Policy) -> None:
    problem = random_bundled(random, 16)
    plan = solve(problem, policy)  # verified within
    assert plan.bound >= plan.value - 1e-6 * max(1.0, abs(plan.value))
    assert all(allocation.reason.text for allocation in plan.allocations)
