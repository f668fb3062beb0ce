"""Whatever was measured, a plan can be made with the learnt curve, and exploring keeps to its budget."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from num_examples import scaled
from oakum_solver.curves import Sample, fit_curve
from oakum_solver.exploration import Exploration, explore
from oakum_solver.problem import Curve

RATES = st.floats(1e-9, 1e12)
SIZES = st.integers(1, 300)


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    seconds = st.sampled_from((0.01, 5.0, 1e6))
    return draw(st.lists(st.builds(Sample, SIZES, RATES, seconds), max_size=12))


@st.composite
def priors(draw: st.DrawFn) -> Curve | None:
    nodes = sorted(draw(st.sets(SIZES, max_size=5)))
    rates = sorted(draw(st.lists(st.just(0.0) | RATES, min_size=len(nodes), max_size=len(nodes))))
    return Curve(tuple(zip(nodes, rates, strict=True))) if nodes else None


@settings(max_examples=scaled(150), deadline=None)
@given(sample_lists(), priors(), SIZES, st.floats(0.0, 1e6))
def test_any_measurements_give_a_rising_curve_with_its_doubts(
    samples: list[Sample], prior: Curve | None, max_nodes: int, budget: float
) -> None:
    fitted = fit_curve(samples, prior, max_nodes)  # a curve that fell would be refused
    assert fitted.measured == {sample.nodes for sample in samples}
    for nodes in {1, max_nodes, *fitted.measured}:
        rate = fitted.curve.rate(nodes)
        assert math.isfinite(fitted.std(nodes))
        assert 0.0 <= fitted.low(nodes) <= rate <= fitted.high(nodes)
        if nodes not in fitted.measured and rate > 0:
            assert fitted.std(nodes) > 0
    for nodes, hope in explore(fitted, max_nodes, budget).points:
        assert hope >= fitted.curve.rate(nodes) * (1 - 1e-12)


@settings(max_examples=scaled(100), deadline=None)
@given(sample_lists(), SIZES)
def test_measured_rates_bound_the_curve(samples: list[Sample], max_nodes: int) -> None:
    """Within the range of measured sizes, the model fills in values between the measured ones and invents none
    beyond them."""
    if not samples:
        return
    rates = dict(fit_curve(samples, None, max_nodes).curve.points)
    first, last = min(s.nodes for s in samples), max(s.nodes for s in samples)
    assert all(rates[first] <= rate <= rates[last] for nodes, rate in rates.items() if first <= nodes <= last)


@settings(max_examples=scaled(100), deadline=None)
@given(sample_lists(), priors(), SIZES)
def test_the_order_of_the_samples_does_not_matter(
    samples: list[Sample], prior: Curve | None, max_nodes: int
) -> None:
    there, back = fit_curve(samples, prior, max_nodes), fit_curve(samples[::-1], prior, max_nodes)
    for (nodes, rate), (_, other) in zip(there.curve.points, back.curve.points, strict=True):
        assert math.isclose(rate, other, rel_tol=1e-6), nodes


@settings(max_examples=scaled(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 200.0)), max_size=60),
    st.sampled_from((0.0, 0.02, 0.2)),
)
def test_exploring_keeps_to_its_share_whatever_sizes_come(visits: list[tuple[int, float]], share: float) -> None:
    exploration = Exploration(share=share)
    trained_s: dict[int, float] = {}
    explored_s: dict[int, float] = {}
    for nodes, seconds in visits:
        if exploration.tries(nodes, trained_s, exploration.budget(trained_s, explored_s)):
            spent_s = min(seconds, exploration.min_seconds - trained_s.get(nodes, 0.0))
            explored_s[nodes] = explored_s.get(nodes, 0.0) + spent_s
        trained_s[nodes] = trained_s.get(nodes, 0.0) + seconds
        assert exploration.budget(trained_s, explored_s) >= -1e-6
