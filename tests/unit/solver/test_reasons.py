"""The reason for a trainer's size, with the model's own numbers."""

import math
import re
from dataclasses import replace
from random import Random

from cells import each
from oakum_solver.objectives import NamedObjective, Objective
from oakum_solver.plan import Reason, Why
from oakum_solver.problem import PUBLISHED, Curve, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import POLICIES, solve
from random_problems import random_problem

LINEAR = Curve(((8, 80.0),))
FAST = Curve(((8, 160.0),))


def trainer(id_: str, curve: Curve = LINEAR, **settings: object) -> PlannedTrainer:
    """No start-up and no stalls unless asked for, so that the numbers are round."""
    free = {"startup_s": 0.0, "grow_stall_s": 0.0, "shrink_stall_s": 0.0, "max_nodes": 8}
    return PlannedTrainer(id_, curve, **{**free, **settings})  # type: ignore[arg-type]


def nodes(names: str, owner: str | None = None, horizon_s: float = math.inf, node_type: str = "cpu") -> NodeGroup:
    return NodeGroup(tuple(names.split()), owner, horizon_s, node_type)


def problem(
    trainers: tuple[PlannedTrainer, ...],
    *groups: NodeGroup,
    objective: Objective = NamedObjective.THROUGHPUT,
    **caps: int,
) -> Problem:
    return Problem(trainers, groups, look_ahead_s=60.0, objective=objective, user_caps=caps)


def reason(asked: Problem) -> Reason:
    """The first trainer's reason."""
    return solve(asked).allocations[0].reason


def test_at_its_maximum() -> None:
    given = reason(problem((trainer("a", max_nodes=2),), nodes("n1 n2 n3")))
    assert given == Reason(Why.AT_MAXIMUM, "its maximum is 2 nodes")


def test_no_idle_node_at_all() -> None:
    assert reason(problem((trainer("a"),))) == Reason(Why.NO_IDLE_NODE, "no node is idle")


def test_every_idle_node_already() -> None:
    given = reason(problem((trainer("a"),), nodes("n1 n2")))
    assert given == Reason(Why.NO_IDLE_NODE, "no other node is idle")


def test_a_flat_curve() -> None:
    flat = Curve(((1, 10.0), (2, 20.0)))
    given = reason(problem((trainer("a", flat),), nodes("n1 n2 n3")))
    assert given == Reason(Why.CURVE_FLAT, "a third node would not make it faster")


def test_a_stall_that_costs_more_than_the_node_adds() -> None:
    asked = problem((trainer("a", grow_stall_s=40.0),), nodes("n1 n2", "a"), nodes("n3"))
    assert reason(asked) == Reason(
        Why.STALL_NOT_WORTH_IT,
        "a third node would add 600 samples in the 1 min after the plan, but the stall of the change would cost "
        "1,200 samples",
        gain=600.0,
        cost=1200.0,
    )
    assert reason(replace(asked, terms=PUBLISHED)) == Reason(
        Why.STALL_NOT_WORTH_IT,
        "a third node would add 600 samples in the 1 min after the plan, "
        "but the stall of the change would cost 800 samples",
        gain=600.0,
        cost=800.0,
    )


def test_a_start_up_longer_than_the_look_ahead() -> None:
    given = reason(problem((trainer("a", startup_s=90.0),), nodes("n1")))
    assert given.why is Why.STALL_NOT_WORTH_IT
    assert given.text == "a first node would take longer to start than the 1 min that a plan looks ahead"


def test_a_node_of_another_cohort() -> None:
    held = nodes("n1 n2 n3 n4", "a", horizon_s=60.0)
    given = reason(problem((trainer("a", shrink_stall_s=60.0),), held, nodes("n5", horizon_s=61.0)))
    assert given.why is Why.STALL_NOT_WORTH_IT
    assert given.text == (
        "a fifth node would have to be given back at another time than its other nodes, and that further stall "
        "would cost more than the node adds"
    )


def test_others_gain_more_names_who() -> None:
    given = reason(problem((trainer("a"), trainer("b", FAST), trainer("c", FAST, weight=2)), nodes("n1 n2")))
    assert given.why is Why.OTHERS_GAIN_MORE
    assert given.other == "c"
    assert given.text == (
        "a first node would add 600 samples (times its weight) in the 1 min after the plan, "
        "but c, which would miss it least, would lose 2,400 samples"
    )
    assert (given.gain, given.cost) == (600.0, 2400.0)


def test_below_the_minimum() -> None:
    given = reason(problem((trainer("a", min_nodes=4), trainer("b")), nodes("n1 n2 n3")))
    assert given == Reason(
        Why.BELOW_MINIMUM,
        "it needs at least 4 nodes, which would add 2,400 samples in the 1 min after the plan, "
        "but no node is free",
        gain=2400.0,
    )


def test_a_minimum_above_what_the_cluster_has() -> None:
    asked = problem((trainer("a", min_nodes=4),), nodes("n1 n2"))
    text = (
        "it needs at least 4 nodes, and the cluster has 3 nodes: lower its min_nodes, or wait until there are more"
    )
    assert reason(replace(asked, cluster_nodes=3)) == Reason(Why.BELOW_MINIMUM, text)
    assert reason(replace(asked, groups=(), cluster_nodes=3)) == Reason(Why.BELOW_MINIMUM, text)
    assert reason(replace(asked, cluster_nodes=4)).text != text


def test_too_few_for_the_next_size() -> None:
    given = reason(problem((trainer("a", sizes=(1, 2, 4, 8)),), nodes("n1 n2 n3 n4", "a"), nodes("n5 n6 n7")))
    assert given == Reason(
        Why.BELOW_NEXT_SIZE,
        "the next larger size that it may have is 8 nodes, which would add 2,400 samples in the 1 min "
        "after the plan, but only 3 more nodes are free",
        gain=2400.0,
    )


def test_a_size_that_others_would_have_to_give_up_for() -> None:
    one = trainer("a", min_nodes=2, max_nodes=4, sizes=(2, 4))
    asked = problem((one, trainer("b", FAST, max_nodes=2)), nodes("n1 n2 n3 n4"))
    assert reason(asked).text == (
        "4 nodes would add 1,200 samples in the 1 min after the plan, "
        "but b, which would miss them least, would lose 2,400 samples"
    )


def test_two_nodes_at_once_are_compared_with_two_of_another() -> None:
    """One of them would bring the other less than the two bring here."""
    one = trainer("a", min_nodes=2, max_nodes=4, sizes=(2, 4))
    middling = Curve(((8, 120.0),))
    given = reason(problem((one, trainer("b", middling, max_nodes=2)), nodes("n1 n2 n3 n4")))
    assert (given.why, given.gain, given.cost) == (Why.OTHERS_GAIN_MORE, 1200.0, 1800.0)


def test_a_plan_that_is_the_best_is_not_said_to_want_time() -> None:
    """Of two other trainers each would lose little, and neither has enough alone."""
    one = trainer("a", min_nodes=2, max_nodes=4, sizes=(2, 4))
    others = [trainer(name, Curve(((8, 84.0),)), max_nodes=1) for name in ("b", "c")]
    plan = solve(problem((one, *others), nodes("n1 n2 n3 n4")))
    given = plan.allocations[0].reason
    assert (plan.optimal, given.why, given.other) == (True, Why.OTHERS_GAIN_MORE, "b")
    assert given.text.endswith("but no split in which it has them is worth more in all")


def test_a_users_cap() -> None:
    given = reason(problem((trainer("a", user="ada"), trainer("b", user="ada")), nodes("n1 n2 n3"), ada=2))
    assert given.why is Why.USER_CAP
    assert given.text.endswith("ada's trainers together have 2 nodes and may have at most 2")
    assert given.gain == 600.0


def test_a_users_cap_below_its_trainers_minimum() -> None:
    given = reason(problem((trainer("a", user="ada", min_nodes=3),), nodes("n1 n2 n3"), ada=2))
    assert given == Reason(
        Why.USER_CAP, "ada's trainers together have 0 nodes and may have at most 2", gain=1800.0
    )


def test_another_users_cap_is_no_reason() -> None:
    asked = problem((trainer("a", user="ada"), trainer("b", FAST, user="bob")), nodes("n1 n2"), ada=5)
    assert reason(asked).why is Why.OTHERS_GAIN_MORE


def test_a_higher_priority() -> None:
    given = reason(problem((trainer("a", FAST), trainer("b", priority=1)), nodes("n1 n2")))
    assert given == Reason(
        Why.PRIORITY,
        "a first node would add 1,200 samples in the 1 min after the plan, "
        "but trainers of a higher priority, such as b, have every node that it can use",
        gain=1200.0,
        cost=600.0,
        other="b",
    )


def test_a_higher_priority_has_what_a_trainer_with_nodes_would_like() -> None:
    given = reason(problem((trainer("a", FAST), trainer("b", priority=1, max_nodes=3)), nodes("n1 n2 n3 n4")))
    assert (given.why, given.other, given.gain) == (Why.PRIORITY, "b", 1200.0)


def test_equals_in_priority_outbid_each_other() -> None:
    asked = problem((trainer("a"), trainer("b", FAST), trainer("c", priority=1, max_nodes=1)), nodes("n1 n2"))
    given = reason(asked)
    assert (given.why, given.other) == (Why.OTHERS_GAIN_MORE, "b")


def test_a_guarantee_is_no_split_that_could_be_better() -> None:
    """Nobody may take the last node of a guaranteed trainer: no time would find a better plan."""
    asked = problem((trainer("a", FAST), trainer("w", guaranteed=True)), nodes("n1 n2"))
    assert "no better split" not in reason(asked).text


def test_nodes_of_another_type_are_no_split_that_could_be_better() -> None:
    on_gpu = replace(trainer("a"), curves_by_type={"gpu": LINEAR})
    on_cpu = replace(trainer("b"), curves_by_type={"cpu": Curve(((8, 0.8),))})
    asked = problem((on_gpu, on_cpu), nodes("n1", node_type="gpu"), nodes("n2"))
    given = reason(asked)
    assert given.why is Why.NO_IDLE_NODE
    assert "no better split" not in given.text


def test_the_objectives_unit_is_named() -> None:
    given = reason(problem((trainer("a"), trainer("b", weight=2)), nodes("n1"), objective=NamedObjective.SPEEDUP))
    assert given.text == (
        "a first node would add 60 s of training on one node (times its weight) in the 1 min after the plan, "
        "but b, which would miss it least, would lose 120 s"
    )


@each("policy", POLICIES)
def test_nobody_asked(policy: str) -> None:
    plan = solve(problem((trainer("a"),), nodes("n1")), policy, explained=False)  # type: ignore[arg-type]
    assert plan.allocations[0].reason == Reason(Why.UNEXPLAINED, "")


_UNITS = r"(?:samples?|s|min|h|d|ms|points?|(?:more )?nodes?|fragments?|steps?|epochs?)\b"


def wrong_with(text: str) -> str:
    """What a person would not have said so; empty where nothing is wrong."""
    if re.search(r"(?<![\d.,])1 (?:more )?\w{2,}s\b", text):
        return "one is not many"
    if re.search(r"\b(\w+),? \1\b", text):
        return "a word comes twice"
    if re.search(r"\de[+-]?\d|\.\d{4}|\binf\b|\bnan\b", text):
        return "a number is not written for people"
    for number in re.finditer(r"(?<![\w.,-])\d[\d,.]*(?!\w)", text):
        rest = text[number.end() :].lstrip(" ")
        if not re.match(_UNITS, rest) and not text[: number.start()].endswith(("at most ", "number ")):
            return f"{number[0]} has no unit"
    return ""


def test_every_reason_reads_as_a_person_would_say_it() -> None:
    """Reasons of all kinds, from random problems: one is not many, and numbers have units and few digits."""
    random = Random(5)
    said: set[str] = set()
    kinds: set[Why] = set()
    for number in range(400):
        asked = random_problem(random, social=number % 2 == 0, typed=number % 3 == 0)
        for allocation in solve(asked, "greedy").allocations:
            said.add(allocation.reason.text)
            kinds.add(allocation.reason.why)
    assert kinds == set(Why) - {Why.UNEXPLAINED}
    assert not {text: wrong for text in said if (wrong := wrong_with(text))}
