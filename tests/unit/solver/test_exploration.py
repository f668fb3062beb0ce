"""Exploring sizes: where hope is allowed, what it may cost, and what learning is worth in a closed loop."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from oakum_solver.curves import FittedCurve, Sample, fit_curve, linear_curve, newcomer_curve
from oakum_solver.exploration import Exploration, explore
from oakum_solver.problem import Curve

MOST = 32
EVERY_S, STALL_S = 60.0, 1.0


def true_rate(compute: float, constant: float, communication: float, nodes: int) -> float:
    return 256.0 / (compute / nodes + constant + communication * math.log2(nodes))


TRUE = {
    name: Curve(tuple((n, max(true_rate(*times, m) for m in range(1, n + 1))) for n in range(1, MOST + 1)))
    for name, times in {
        "saturating": (1.0, 0.15, 0.03),
        "linear": (1.2, 0.01, 0.002),
        "between": (1.0, 0.03, 0.01),
    }.items()
}
WRONG = {
    "saturating": Curve(((1, 200.0), (8, 1400.0), (32, 4000.0))),
    "linear": Curve(((1, 200.0), (8, 1300.0), (32, 2600.0))),
    "between": Curve(((1, 250.0), (8, 1500.0), (32, 3000.0))),
}


def test_only_sizes_that_are_not_measured_yet_are_raised() -> None:
    fitted = fit_curve([Sample(4, 400.0, 60.0), Sample(8, 790.0, 60.0)], None, 16)
    curve = explore(fitted, 16, budget=1e9)
    raised = [nodes for nodes in range(1, 17) if curve.rate(nodes) > fitted.curve.rate(nodes)]
    assert raised == [1, 2, 3, 5, 6, 7, *range(9, 17)]
    assert curve.rate(9) == pytest.approx(min(fitted.high(9), 1.1 * fitted.curve.rate(9)))


def test_a_size_is_hoped_to_be_no_faster_than_a_larger_one_was_measured() -> None:
    fitted = fit_curve([Sample(4, 400.0, 600.0), Sample(8, 410.0, 600.0)], None, 8)
    assert explore(fitted, 8, budget=1e9).rate(6) == pytest.approx(fitted.curve.rate(8))


def test_no_size_is_raised_that_the_budget_does_not_reach() -> None:
    """The budget suffices for 20 s on 6 nodes, which are 120 node-seconds, and not on 7."""
    fitted = fit_curve([Sample(4, 400.0, 60.0)], None, 16)
    curve = explore(fitted, 16, budget=120.0)
    raised = [nodes for nodes in range(1, 17) if curve.rate(nodes) > fitted.curve.rate(nodes)]
    assert raised == [1, 2, 3, 5, 6]
    assert explore(fitted, 16, budget=0.0) == fitted.curve


def test_a_trainer_that_was_never_measured_is_planned_with_what_its_user_says() -> None:
    prior = Curve(((1, 10.0), (4, 30.0)))
    assert explore(FittedCurve(prior), 8, budget=1e9) == prior


def test_the_budget_is_a_share_of_the_node_time_trained() -> None:
    exploration = Exploration(share=0.1)
    assert exploration.budget({2: 100.0, 4: 50.0}, {4: 5.0}) == pytest.approx(0.1 * 400.0 - 20.0)
    assert not Exploration(share=0.0).tries(1, {}, 0.0)


@dataclass
class Learner:
    """What a service knows of one trainer: its measurements and the time spent exploring."""

    prior: Curve | None
    rates: dict[int, list[float]] = field(default_factory=dict)
    trained_s: dict[int, float] = field(default_factory=dict)
    explored_s: dict[int, float] = field(default_factory=dict)

    def posed(self, exploration: Exploration) -> Curve:
        samples = [
            Sample(nodes, rate, self.trained_s[nodes] / len(rates))
            for nodes, rates in self.rates.items()
            for rate in rates
        ]
        return explore(fit_curve(samples, self.prior, MOST), MOST, self.budget(exploration), exploration)

    def budget(self, exploration: Exploration) -> float:
        return exploration.budget(self.trained_s, self.explored_s)

    def train(self, nodes: int, rate: float, seconds: float, exploration: Exploration) -> None:
        before_s = self.trained_s.get(nodes, 0.0)
        if exploration.tries(nodes, self.trained_s, self.budget(exploration)):
            spent_s = min(seconds, exploration.min_seconds - before_s)
            self.explored_s[nodes] = self.explored_s.get(nodes, 0.0) + spent_s
        self.rates[nodes] = [*self.rates.get(nodes, [])[-7:], rate]
        self.trained_s[nodes] = before_s + seconds


def posed_curves(learners: dict[str, Learner], exploration: Exploration, learning: bool) -> dict[str, Curve]:
    """What the planner is told of each trainer."""
    if not learning:
        return {name: learner.prior or linear_curve(MOST) for name, learner in learners.items()}
    curves = {name: learner.posed(exploration) for name, learner in learners.items()}
    known = [curves[name].rate(1) for name, learner in learners.items() if learner.rates or learner.prior]
    unknown = newcomer_curve(1, MOST, max(known)) if known else linear_curve(MOST)
    return {
        name: curves[name] if learner.rates or learner.prior else unknown for name, learner in learners.items()
    }


def best_split(curves: dict[str, Curve], held: dict[str, int], num_nodes: int) -> dict[str, int]:
    """The sizes worth most over the next interval, by dynamic programming."""
    best: dict[int, tuple[float, dict[str, int]]] = {0: (0.0, {})}
    for name, curve in curves.items():
        stall = STALL_S * curve.rate(held[name])
        values = [EVERY_S * curve.rate(n) - stall * (n != held[name]) for n in range(MOST + 1)]
        longer: dict[int, tuple[float, dict[str, int]]] = {}
        for used, (value, sizes) in best.items():
            for nodes in range(min(MOST, num_nodes - used) + 1):
                if value + values[nodes] > longer.get(used + nodes, (-math.inf, {}))[0]:
                    longer[used + nodes] = value + values[nodes], {**sizes, name: nodes}
        best = longer
    return max(best.values(), key=lambda candidate: candidate[0])[1]


def samples_trained(
    priors: dict[str, Curve | None],
    *,
    learning: bool,
    holes_change: bool = True,
    exploration: Exploration = Exploration(),
    learners: dict[str, Learner] | None = None,
) -> float:
    """Samples of three trainers in two hours of holes, planned every minute, measured with 3 % of noise."""
    learners = {} if learners is None else learners
    learners |= {name: Learner(prior) for name, prior in priors.items()}
    holes, noise = random.Random(5), random.Random(6)
    held, num_nodes, samples = dict.fromkeys(TRUE, 0), 24, 0.0
    for _ in range(120):
        if holes_change:
            num_nodes = max(4, min(40, num_nodes + holes.randint(-4, 4)))
        sizes = best_split(posed_curves(learners, exploration, learning), held, num_nodes)
        for name, nodes in sizes.items():
            seconds = EVERY_S - STALL_S * (nodes != held[name])
            samples += TRUE[name].rate(nodes) * seconds
            if nodes:
                learners[name].train(nodes, TRUE[name].rate(nodes) * noise.gauss(1.0, 0.03), seconds, exploration)
        held = sizes
    return samples


def test_learnt_curves_beat_wrong_ones_and_come_near_the_truth() -> None:
    """MalleTrain's claim is up to 22 % over its users' curves; how much it is depends on how wrong these are."""
    truth = samples_trained(dict(TRUE), learning=False)
    wrong, learnt = samples_trained(dict(WRONG), learning=False), samples_trained(dict(WRONG), learning=True)
    assert learnt > 1.15 * wrong
    assert learnt > 0.95 * truth


def test_learnt_curves_beat_no_curves() -> None:
    truth = samples_trained(dict(TRUE), learning=False)
    linear = samples_trained(dict.fromkeys(TRUE), learning=False)
    learnt = samples_trained(dict.fromkeys(TRUE), learning=True)
    assert learnt > 1.1 * linear
    assert learnt > 0.95 * truth


def test_learning_costs_little_where_the_users_curves_are_right() -> None:
    assert samples_trained(dict(TRUE), learning=True) > 0.98 * samples_trained(dict(TRUE), learning=False)


def test_exploring_finds_what_holes_that_never_change_do_not_show() -> None:
    """Three trainers without curves: whoever was first measured on many nodes would keep them for ever."""

    def trained(share: float) -> float:
        exploration = Exploration(share=share)
        return samples_trained(dict.fromkeys(TRUE), learning=True, holes_change=False, exploration=exploration)

    assert trained(0.02) > 1.5 * trained(0.0)


def test_exploring_stays_within_its_share_of_the_node_time() -> None:
    learners: dict[str, Learner] = {}
    samples_trained(dict(WRONG), learning=True, learners=learners)
    for learner in learners.values():
        explored = sum(nodes * seconds for nodes, seconds in learner.explored_s.items())
        trained = sum(nodes * seconds for nodes, seconds in learner.trained_s.items())
        assert 0.0 < explored <= 0.02 * trained
