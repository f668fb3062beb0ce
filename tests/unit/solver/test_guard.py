"""Who is guaranteed nodes, and for how long."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cells import each
from oakum_solver.errors import ProblemError
from oakum_solver.guard import StarvationGuard, Wait

GUARD = StarvationGuard(wait_s=3600.0, quantum_s=600.0)
WITH, WITHOUT = True, False


def after(*spells: tuple[float, bool], guard: StarvationGuard = GUARD) -> Wait:
    """The wait of a new trainer after these spells of (seconds, has nodes)."""
    wait = Wait()
    for seconds, has_nodes in spells:
        wait = guard.after(wait, seconds, has_nodes)
    return wait


def test_a_trainer_is_guaranteed_nodes_once_it_has_waited_long_enough() -> None:
    assert not GUARD.guarantees(after((3599, WITHOUT)))
    assert GUARD.guarantees(after((3599, WITHOUT), (1, WITHOUT)))


def test_the_guarantee_lasts_until_it_has_had_nodes_for_a_quantum() -> None:
    waited = (3600.0, WITHOUT)
    assert GUARD.guarantees(after(waited, (599, WITH)))
    assert after(waited, (599, WITH), (1, WITH)) == Wait()


def test_a_quantum_cut_short_is_made_up() -> None:
    cut_short = after((3600, WITHOUT), (200, WITH), (50, WITHOUT), (399, WITH))
    assert GUARD.guarantees(cut_short)
    assert GUARD.after(cut_short, 1.0, WITH) == Wait()


def test_a_moment_with_nodes_does_not_end_the_wait() -> None:
    assert GUARD.guarantees(after((3000, WITHOUT), (20, WITH), (600, WITHOUT)))


def test_what_it_had_while_it_waited_is_not_taken_off_its_quantum() -> None:
    assert GUARD.guarantees(after((3000, WITHOUT), (500, WITH), (600, WITHOUT), (599, WITH)))


def test_a_quantum_before_the_guard_steps_in_ends_the_wait() -> None:
    assert after((3000, WITHOUT), (600, WITH), (700, WITHOUT)) == Wait(700.0)


def test_a_trainer_that_runs_waits_for_nothing() -> None:
    assert after((1e9, WITH)) == Wait()
    assert GUARD.changes_in_s(Wait(), WITH) == math.inf


def test_the_guard_is_off_unless_it_is_asked_for() -> None:
    guard = StarvationGuard()
    waited = after((1e12, WITHOUT), guard=guard)
    assert (guard.guarantees(waited), guard.changes_in_s(waited, WITHOUT)) == (False, math.inf)


def test_it_tells_when_its_word_changes() -> None:
    assert GUARD.changes_in_s(after((1000, WITHOUT)), WITHOUT) == 2600
    assert GUARD.changes_in_s(after((1000, WITHOUT)), WITH) == math.inf
    assert GUARD.changes_in_s(after((4000, WITHOUT), (200, WITH)), WITH) == 400
    assert GUARD.changes_in_s(after((4000, WITHOUT)), WITHOUT) == math.inf


def test_it_tells_how_long_a_guarantee_has_stood_with_nodes_and_without() -> None:
    assert GUARD.guaranteed_for_s(after((3000, WITHOUT))) == 0.0
    stood = after((3000, WITHOUT), (1000, WITHOUT), (200, WITH), (100, WITHOUT))
    assert GUARD.guaranteed_for_s(stood) == 400.0 + 200.0 + 100.0
    assert GUARD.guaranteed_for_s(after((4000, WITHOUT), (600, WITH))) == 0.0


@each("times", [{"wait_s": 0.0}, {"wait_s": math.nan}, {"quantum_s": math.inf}, {"quantum_s": 0.0}])
def test_times_without_sense_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ProblemError, match=f"{next(iter(times))} is .*: expected"):
        StarvationGuard(**times)


spells = st.lists(st.tuples(st.integers(0, 5000).map(float), st.booleans()), max_size=12)


@given(spells, st.integers(1, 50))
def test_the_answer_does_not_depend_on_how_often_it_is_asked(
    spells: list[tuple[float, bool]], pieces: int
) -> None:
    often = after(*((seconds / pieces, has) for seconds, has in spells for _ in range(pieces)))
    seldom = after(*spells)
    assert (often.waited_s, often.served_s) == pytest.approx((seldom.waited_s, seldom.served_s), abs=1e-6)


@given(spells, st.booleans(), st.floats(0.01, 1e6), st.floats(0.01, 1e6), st.floats(0, 2e9))
def test_its_word_changes_when_it_said_whatever_the_clock_rounds(
    spells: list[tuple[float, bool]], has_nodes: bool, wait_s: float, quantum_s: float, now_s: float
) -> None:
    guard = StarvationGuard(wait_s, quantum_s)
    wait = after(*spells, guard=guard)
    change_s = guard.changes_in_s(wait, has_nodes)
    later = guard.after(wait, (now_s + change_s) - now_s if change_s < math.inf else 1e6, has_nodes)
    assert (guard.guarantees(later) != guard.guarantees(wait)) == (change_s < math.inf)


@given(spells)
def test_no_trainer_goes_without_for_longer_than_the_guard_allows(spells: list[tuple[float, bool]]) -> None:
    """If every guaranteed trainer gets nodes, none waits for more than `wait_s` in all before it has had a
    quantum."""
    wait, waited_s = Wait(), 0.0
    for seconds, has_nodes in spells:
        while seconds > 0:
            has = has_nodes or GUARD.guarantees(wait)
            step_s = min(seconds, GUARD.changes_in_s(wait, has))
            wait = GUARD.after(wait, step_s, has)
            waited_s = 0.0 if wait == Wait() else waited_s + (0.0 if has else step_s)
            seconds -= step_s
            assert waited_s <= GUARD.wait_s
