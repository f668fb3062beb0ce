"""Who comes first whatever others would gain, who may not have more, and who must not go without."""

from dataclasses import replace

import pytest

from cells import each
from oakum_solver.errors import InfeasiblePlanError, ProblemError
from oakum_solver.plan import Plan
from oakum_solver.problem import PUBLISHED, Curve, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import POLICIES, Policy, solve
from oakum_solver.verify import verify

ELASTIC: tuple[Policy, ...] = ("milp", "greedy")
ALIKE = (NodeGroup(("n1", "n2", "n3", "n4")),)
MIXED = (
    NodeGroup(("n1", "n2"), horizon_s=600.0, cohort="x"),
    NodeGroup(("n3", "n4"), horizon_s=300.0, cohort="y"),
)
TYPED = (NodeGroup(("n1", "n2"), node_type="cpu"), NodeGroup(("n3", "n4"), node_type="gpu"))


def trainer(id_: str, rate: float = 1.0, **settings: object) -> PlannedTrainer:
    """Linear, without stalls or start-up."""
    free = {"startup_s": 0.0, "grow_stall_s": 0.0, "shrink_stall_s": 0.0}
    return PlannedTrainer(id_, Curve(((64, 64 * rate),)), **{**free, **settings})  # type: ignore[arg-type]


def held_by(owner: str, groups: tuple[NodeGroup, ...]) -> tuple[NodeGroup, ...]:
    return tuple(replace(group, owner=owner) for group in groups)


def sizes(plan: Plan) -> list[int]:
    return [len(allocation.nodes) for allocation in plan.allocations]


@pytest.mark.parametrize("groups", [ALIKE, MIXED], ids=["alike", "mixed"])
@pytest.mark.parametrize("policy", ELASTIC)
class TestPriorities:
    def test_a_higher_priority_chooses_first_whatever_others_gain(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        slow, fast = trainer("slow", priority=1, max_nodes=3), trainer("fast", 1000.0)
        assert sizes(solve(Problem((fast, slow), groups), policy)) == [1, 3]

    def test_a_higher_priority_takes_nodes_from_who_holds_them(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        asked = Problem((trainer("fast", 1000.0), trainer("slow", priority=1)), held_by("fast", groups))
        assert sizes(solve(asked, policy)) == [0, 4]

    def test_a_lower_priority_takes_nothing_from_a_higher_one(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        asked = Problem((trainer("fast", 1000.0), trainer("slow", priority=1)), held_by("slow", groups))
        assert sizes(solve(asked, policy)) == [0, 4]

    def test_three_priorities_choose_one_after_the_other(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        trainers = tuple(trainer(f"p{p}", 10.0 ** (3 - p), priority=p, max_nodes=2) for p in (0, -1, 2))
        assert sizes(solve(Problem(trainers, groups), policy)) == [2, 0, 2]

    def test_equals_are_split_by_worth(self, policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
        asked = Problem((trainer("slow", priority=7), trainer("fast", 2.0, priority=7)), groups)
        assert sizes(solve(asked, policy)) == [0, 4]


@pytest.mark.parametrize("groups", [ALIKE, MIXED, TYPED], ids=["alike", "mixed", "typed"])
@pytest.mark.parametrize("policy", ELASTIC)
class TestGuarantees:
    def test_a_guaranteed_trainer_gets_its_minimum_and_no_more(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        asked = Problem((trainer("fast", 1000.0), trainer("slow", min_nodes=2, guaranteed=True)), groups)
        assert sizes(solve(asked, policy)) == [2, 2]

    def test_others_give_nodes_up_for_it(self, policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
        slow = trainer("slow", min_nodes=2, guaranteed=True)
        asked = Problem((trainer("fast", 1000.0), slow), held_by("fast", groups))
        assert sizes(solve(asked, policy)) == [2, 2]

    def test_it_keeps_its_minimum(self, policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
        slow = trainer("slow", min_nodes=3, guaranteed=True)
        asked = Problem((trainer("fast", 1000.0, min_nodes=1), slow), held_by("slow", groups))
        assert sizes(solve(asked, policy)) == [1, 3]

    def test_the_guarantee_of_longest_standing_comes_first(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        early = trainer("early", min_nodes=3, guaranteed=True, guaranteed_for_s=60.0)
        late = trainer("late", min_nodes=3, guaranteed=True, guaranteed_for_s=30.0)
        assert sizes(solve(Problem((late, early), groups), policy)) == [0, 4]

    def test_among_equals_nobody_is_interrupted(self, policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
        """Whoever has nodes has waited for 0 s, and the others longer with each plan."""
        waiting = trainer("waiting", min_nodes=3, guaranteed=True, guaranteed_for_s=40.0, waited_s=3640.0)
        served = trainer("served", min_nodes=3, guaranteed=True, guaranteed_for_s=40.0)
        asked = Problem((waiting, served), held_by("served", groups))
        assert sizes(solve(asked, policy)) == [0, 4]

    def test_who_fits_where_one_before_does_not_is_served(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        large = trainer("large", min_nodes=5, guaranteed=True, guaranteed_for_s=60.0)
        small = trainer("small", min_nodes=1, max_nodes=1, guaranteed=True)
        asked = Problem((large, small, trainer("fast", 1000.0, min_nodes=3)), groups)
        assert sizes(solve(asked, policy)) == [0, 1, 3]

    def test_it_is_served_although_it_loses_by_starting(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        slow = trainer("slow", min_nodes=2, guaranteed=True, grow_stall_s=1000.0)
        asked = Problem((trainer("fast", 1000.0), slow), groups)
        assert sizes(solve(asked, policy)) == [2, 2]

    def test_everybody_is_served_as_long_as_all_fit(self, policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
        waiting = tuple(trainer(f"w{i}", guaranteed=True, guaranteed_for_s=float(i)) for i in range(4))
        asked = Problem((trainer("fast", 1000.0), *waiting), groups)
        assert sizes(solve(asked, policy)) == [0, 1, 1, 1, 1]


@each("groups", [ALIKE, MIXED, TYPED], ids=["alike", "mixed", "typed"])
@each("policy", ELASTIC)
def test_a_guarantee_comes_before_priorities(policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
    first, waiting = (
        trainer("first", priority=1),
        trainer("w", min_nodes=2, guaranteed=True, guaranteed_for_s=60.0),
    )
    for holders in (groups, held_by("first", groups)):
        assert sizes(solve(Problem((first, waiting), holders), policy)) == [2, 2]


@each("groups", [ALIKE, MIXED, TYPED], ids=["alike", "mixed", "typed"])
@each("policy", ELASTIC)
def test_an_earlier_guarantee_comes_before_more_guarantees_kept(
    policy: Policy, groups: tuple[NodeGroup, ...]
) -> None:
    """One that has been guaranteed for long needs everything; two that have not would fit together."""
    late, early = (
        trainer("late", guaranteed=True, guaranteed_for_s=1.0),
        trainer("early", guaranteed=True, guaranteed_for_s=2.0),
    )
    large = trainer("large", min_nodes=4, guaranteed=True, guaranteed_for_s=60.0)
    halves = tuple(replace(group, owner=owner) for group, owner in zip(groups, ("late", "early"), strict=False))
    for holders in (groups, halves):
        assert sizes(solve(Problem((late, early, large), holders), policy)) == [0, 0, 4]


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_guarantee_holds_on_the_types_that_the_trainer_can_use(policy: Policy) -> None:
    on_gpu = replace(trainer("a", min_nodes=2, guaranteed=True), curves_by_type={"gpu": Curve(((64, 1.0),))})
    plan = solve(Problem((trainer("fast", 1000.0), on_gpu), TYPED), policy)
    assert (plan.grant("a"), len(plan.grant("fast"))) == (("n3", "n4"), 2)


@pytest.mark.parametrize("groups", [ALIKE, MIXED, TYPED], ids=["alike", "mixed", "typed"])
@pytest.mark.parametrize("policy", POLICIES)
class TestCaps:
    def test_a_users_trainers_have_no_more_than_its_cap_together(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        asked = Problem((trainer("a", user="ada"), trainer("b", user="ada")), groups, user_caps={"ada": 3})
        assert sum(sizes(solve(asked, policy))) == 3

    def test_others_get_what_a_cap_leaves(self, policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
        asked = Problem((trainer("a", 1000.0, user="ada"), trainer("b", user="bob")), groups, user_caps={"ada": 1})
        assert sizes(solve(asked, policy)) == [1, 3]

    def test_who_has_no_user_has_no_cap(self, policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
        asked = Problem((trainer("a"),), groups, user_caps={"ada": 1})
        assert sizes(solve(asked, policy)) == [4]

    def test_a_cap_of_nothing_gives_nothing(self, policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
        asked = Problem((trainer("a", user="ada"),), groups, user_caps={"ada": 0})
        assert sizes(solve(asked, policy)) == [0]

    def test_a_cap_below_what_is_held_takes_nodes_away(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        asked = Problem((trainer("a", user="ada"),), held_by("a", groups), user_caps={"ada": 2})
        assert sizes(solve(asked, policy)) == [2]

    def test_a_cap_that_leaves_less_than_a_minimum_takes_everything(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        asked = Problem((trainer("a", user="ada", min_nodes=3),), held_by("a", groups), user_caps={"ada": 2})
        assert sizes(solve(asked, policy)) == [0]

    def test_a_cap_holds_for_two_trainers_that_hold_more(
        self, policy: Policy, groups: tuple[NodeGroup, ...]
    ) -> None:
        halves = (
            replace(groups[0], nodes=("n1", "n2"), owner="a"),
            replace(groups[-1], nodes=("n3", "n4"), owner="b"),
        )
        asked = Problem((trainer("a", user="ada"), trainer("b", user="ada")), halves, user_caps={"ada": 3})
        assert sum(sizes(solve(asked, policy))) == 3


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_cap_comes_before_a_guarantee(policy: Policy) -> None:
    waiting = trainer("w", user="ada", min_nodes=2, guaranteed=True)
    asked = Problem((waiting, trainer("b", 2.0, user="ada")), ALIKE, user_caps={"ada": 1})
    assert sizes(solve(asked, policy)) == [0, 1]


@pytest.mark.parametrize("policy", ELASTIC)
def test_within_a_cap_a_guarantee_comes_before_worth(policy: Policy) -> None:
    waiting = trainer("w", user="ada", guaranteed=True)
    asked = Problem((trainer("b", 2.0, user="ada"), waiting), held_by("b", ALIKE), user_caps={"ada": 4})
    assert sizes(solve(asked, policy)) == [3, 1]


def test_the_milp_spends_a_cap_on_whom_it_is_worth_most() -> None:
    """The best worth per node is a's, which leaves two of five nodes for c: 41 a second. b with one for a: 50."""
    step = Curve(((3, 0.0), (4, 40.0), (5, 41.0)))
    curves = (("a", Curve(((3, 31.0),))), ("b", step), ("c", Curve(((2, 10.0),))))
    asked = Problem(
        tuple(PlannedTrainer(id_, curve, max_nodes=5, user="ada") for id_, curve in curves),
        (NodeGroup(tuple(f"n{i}" for i in range(9))),),
        terms=PUBLISHED,
        user_caps={"ada": 5},
    )
    plan = solve(asked)
    assert (sizes(plan), plan.value, plan.optimal) == ([1, 4, 0], pytest.approx(120 * (31 / 3 + 40)), True)


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_higher_priority_does_not_exceed_its_users_cap(policy: Policy) -> None:
    first, second = trainer("a", priority=1, user="ada"), trainer("b", user="bob")
    asked = Problem((first, second), ALIKE, user_caps={"ada": 1})
    assert sizes(solve(asked, policy)) == [1, 3]


def test_a_plan_beyond_a_cap_is_refused() -> None:
    asked = Problem((trainer("a", user="ada"),), ALIKE)
    with pytest.raises(InfeasiblePlanError, match="ada's trainers are granted 4 nodes: expected at most 3"):
        verify(replace(asked, user_caps={"ada": 3}), solve(asked))


def test_a_cap_below_nothing_is_refused() -> None:
    with pytest.raises(ProblemError, match="expected a cap >= 0"):
        Problem((), (), user_caps={"ada": -1})
