"""Replays of random logs: what was idle is what was trained and lost, the future is unknown, the bound holds.

Logs and workloads are drawn from a plain generator that Hypothesis seeds, which is quick.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from num_examples import scaled
from oakum_solver.forecast import HoleForecast
from oakum_solver.guard import StarvationGuard
from oakum_solver.logs.holes import HoleLog
from oakum_solver.problem import PlannedTrainer
from oakum_solver.replay import engine
from oakum_solver.replay.costs import CostModel
from oakum_solver.replay.engine import replay
from oakum_solver.replay.result import ReplayResult, ReplaySteps
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import WorkItem, Workload
from oakum_solver.solve import POLICIES, Policy
from random_problems import LINEAR_OBJECTIVES, OBJECTIVES, random_curve

RANDOM = st.randoms(use_true_random=True)
POLICY = st.sampled_from(POLICIES)
PLANNERS: st.SearchStrategy[Policy] = st.sampled_from(("milp", "greedy"))
COST = st.sampled_from(CostModel)
Hole = tuple[int, float, float]


@pytest.fixture(autouse=True, scope="module")
def forecasts_from_the_first_hole_on() -> Iterator[None]:
    """So small a log would otherwise never teach the planner anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "HoleForecast", lambda: HoleForecast(default_s=200.0, least=1))
        yield


def random_holes(random: Random, num_nodes: int, duration_s: float) -> list[Hole]:
    """Several nodes often change at once, some holes follow another at once, and some last to the end."""
    times = [0.0, duration_s, *(float(random.randrange(int(duration_s))) for _ in range(8))]
    holes = []
    for node in range(num_nodes):
        edges = sorted(set(random.choices(times, k=random.randint(0, 7))))
        holes += [(node, start_s, end_s) for start_s, end_s in itertools.pairwise(edges) if random.random() < 0.7]
    return holes


def as_log(holes: list[Hole], num_nodes: int, duration_s: float) -> HoleLog:
    holes = sorted(holes, key=lambda hole: hole[1])
    return HoleLog(
        name="log.csv",
        nodes=tuple(f"n{number}" for number in range(num_nodes)),
        node=np.array([node for node, _, _ in holes], dtype=np.int32),
        start_s=np.array([start_s for _, start_s, _ in holes], dtype=np.float64),
        end_s=np.array([end_s for _, _, end_s in holes], dtype=np.float64),
        duration_s=duration_s,
    )


def random_log(random: Random, num_nodes: int = 6, duration_s: float = 400.0) -> HoleLog:
    return as_log(random_holes(random, num_nodes, duration_s), num_nodes, duration_s)


def random_workload(random: Random, endless: bool = False, social: bool = False) -> Workload:
    """`social`: with priorities, users and deadlines."""
    return Workload(tuple(_random_item(random, id_, endless, social) for id_ in "abcd"[: random.randint(1, 4)]))


def _random_item(random: Random, id_: str, endless: bool, social: bool) -> WorkItem:
    min_nodes = random.choice((1, 1, 2, 3))
    max_nodes = random.randint(min_nodes, 8)
    few = random.sample(range(1, 9), random.randint(0, 2))
    trainer = PlannedTrainer(
        id_,
        random_curve(random, 6, smooth=random.random() < 0.5),
        min_nodes,
        max_nodes,
        sizes=tuple(sorted({min_nodes, max_nodes, *few})) if random.random() < 0.3 else (),
        weight=random.choice((0.0, 0.5, 1.0, 1.0, 3.0)),
        grow_stall_s=random.choice((0.0, 5.0, 18.0)),
        shrink_stall_s=random.choice((0.0, 3.0, 12.0)),
        startup_s=0.0,
        priority=random.choice((0, 0, 1)) if social else 0,
        user=random.choice((None, "ada", "bob")) if social else None,
        deadline_in_s=random.choice((math.inf, 100.0, 300.0)) if social else math.inf,
    )
    samples = None if endless or random.random() < 0.4 else random.choice((1.0, 500.0, 5e3, 1e5))
    return WorkItem(trainer, random.choice((0.0, 0.0, 50.0, 123.25, 500.0)), samples)


def random_settings(random: Random, **settings: Any) -> ReplaySettings:
    drawn = {
        "look_ahead_s": random.choice((30.0, 120.0, 1200.0)),
        "objective": random.choice(OBJECTIVES),
        "startup_s": random.choice((0.0, 20.0, 70.0)),
        "max_trainers": random.choice((None, 1, 2)),
        "groups": random.random() < 0.5,
        "published": random.random() < 0.2,
        "user_cap": random.choice((None, None, 2)),
        "guard": StarvationGuard(random.choice((math.inf, 40.0)), quantum_s=30.0),
        "time_limit_s": 30.0,
    }
    return ReplaySettings(**(drawn | settings))


def timeless(result: ReplayResult) -> dict[str, Any]:
    """A result without the times that it took."""
    steps = {name: getattr(result.steps, name) for name in _STEPS}
    told = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return told | {"wall_s": None, "steps": {name: np.asarray(column).tolist() for name, column in steps.items()}}


_STEPS = [field.name for field in dataclasses.fields(ReplaySteps) if field.name != "solve_s"]


@settings(deadline=None, max_examples=scaled(50))
@given(random=RANDOM, policy=POLICY, cost=COST)
def test_what_was_idle_is_what_was_trained_and_lost(random: Random, policy: Policy, cost: CostModel) -> None:
    log = random_log(random)
    result = replay(log, random_workload(random, social=True), random_settings(random, policy=policy, cost=cost))
    idle_hours, losses = log.idle_node_s / 3600, dataclasses.asdict(result.losses)
    assert result.idle_node_hours == pytest.approx(idle_hours)
    assert result.productive_node_hours + sum(losses.values()) == pytest.approx(idle_hours)
    assert min(result.productive_node_hours, *losses.values()) >= 0.0
    assert result.used_node_hours == pytest.approx(sum(trainer.node_hours for trainer in result.trainers))
    assert result.used_node_hours <= idle_hours + 1e-9
    steps = result.steps
    assert (steps.used_nodes <= steps.idle_nodes).all()
    assert (np.diff(steps.time_s) >= 0).all()


@settings(deadline=None, max_examples=scaled(40))
@given(random=RANDOM, policy=POLICY, cost=COST)
def test_every_trainer_s_way_is_one(random: Random, policy: Policy, cost: CostModel) -> None:
    """Its node-hours are those of its sizes, it has none before its submission and after its end."""
    log = random_log(random)
    workload = random_workload(random, social=True)
    result = replay(log, workload, random_settings(random, policy=policy, cost=cost))
    for trainer, item in zip(result.trainers, workload.items, strict=True):
        times = [time_s for time_s, _ in trainer.sizes]
        assert times[0] == item.submit_s
        assert all(earlier < later for earlier, later in itertools.pairwise(times))
        held = sum(
            nodes * (until_s - from_s) for (from_s, nodes), until_s in zip(trainer.sizes, times[1:], strict=False)
        )
        assert trainer.node_hours * 3600 == pytest.approx(held)
        between = range(item.trainer.min_nodes, item.trainer.max_nodes + 1)
        assert {nodes for _, nodes in trainer.sizes} <= {
            0,
            *(nodes for nodes in between if not item.trainer.sizes or nodes in item.trainer.sizes),
        }
        assert trainer.sizes[-1][1] == 0
        ended = item.samples is not None and trainer.samples == item.samples
        assert (trainer.end_s is not None) == ended
        if trainer.end_s is not None:
            assert trainer.sizes[-1] == (trainer.end_s, 0)
        assert item.samples is None or trainer.samples <= item.samples * (1 + 1e-9)


@settings(deadline=None, max_examples=scaled(40))
@given(random=RANDOM, cost=COST, objective=st.sampled_from(LINEAR_OBJECTIVES), policy=POLICY)
def test_endless_trainers_never_exceed_the_zero_cost_bound(
    random: Random, cost: CostModel, objective: Any, policy: Policy
) -> None:
    chosen = random_settings(random, objective=objective, cost=cost, policy=policy, max_trainers=None)
    result = replay(random_log(random), random_workload(random, endless=True, social=True), chosen)
    assert result.achievable == 0 or result.efficiency <= result.zero_cost_bound * (1 + 1e-9)


@settings(deadline=None, max_examples=scaled(60))
@given(random=RANDOM, objective=st.sampled_from(LINEAR_OBJECTIVES))
def test_without_costs_the_planner_reaches_the_zero_cost_bound(random: Random, objective: Any) -> None:
    chosen = ReplaySettings(objective=objective, cost=CostModel.NONE, gap=0.0, time_limit_s=30.0)
    result = replay(random_log(random), random_workload(random, endless=True), chosen)
    assert result.efficiency == pytest.approx(result.zero_cost_bound, rel=1e-6, nan_ok=True)


@settings(deadline=None, max_examples=scaled(25))
@given(random=RANDOM, policy=PLANNERS, cost=COST, groups=st.booleans())
def test_two_logs_with_one_past_have_one_past_of_plans(
    random: Random, policy: Policy, cost: CostModel, groups: bool
) -> None:
    past = random_holes(random, 6, 400.0)
    now_s = float(random.randrange(1, 400))
    workload = random_workload(random, social=True)
    chosen = random_settings(random, policy=policy, cost=cost, groups=groups)
    results = []
    for _ in range(2):
        known = [hole for hole in past if hole[2] < now_s]
        # What is open at that time ends some time after it; what comes after it is anything.
        still_open = [(node, start_s, random.uniform(now_s, 600.0)) for node, start_s, end_s in past
                      if start_s < now_s <= end_s]  # fmt: skip
        closed = set(range(6)) - {node for node, _, _ in still_open}
        later = [(node, random.uniform(now_s, 500.0), 600.0) for node in closed if random.random() < 0.5]
        log = as_log([*known, *still_open, *later], 6, 600.0 + random.choice((0.0, 100.0)))
        results.append(timeless(replay(log, workload, chosen))["steps"])
    one, other = ([row for row in zip(*steps.values(), strict=True) if row[0] < now_s] for steps in results)
    assert repr(one) == repr(other)


@settings(deadline=None, max_examples=scaled(15))
@given(random=RANDOM, policy=POLICY, cost=COST)
def test_a_replay_is_deterministic(random: Random, policy: Policy, cost: CostModel) -> None:
    log, workload = random_log(random), random_workload(random, social=True)
    chosen = random_settings(random, policy=policy, cost=cost)
    one, other = (timeless(replay(log, workload, chosen)) for _ in range(2))
    assert repr(one) == repr(other)
