"""Simulated schedules take as long, and hold as much, as the papers' formulas say."""

from collections.abc import Iterator
from typing import Any

import pytest

from cells import each
from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.formulas import Formula, FormulaTerms, gems_bubble
from oakum_worker.parallel.pipeline.operations import COMPUTATIONS, Kind, Operation, Schedule
from oakum_worker.parallel.pipeline.schedules import SCHEDULES, build
from oakum_worker.parallel.pipeline.simulation import Simulation, simulate


def chimeras() -> Iterator[tuple[int, int, int]]:
    """(D, 2f, N) over all f that divide D/2, from N = D to beyond 4D."""
    for num_workers in (2, 4, 6, 8, 12):
        for pairs in range(1, num_workers // 2 + 1):
            if (num_workers // 2) % pairs == 0:
                for multiple in (1, 2, 5):
                    yield num_workers, 2 * pairs, multiple * num_workers


def test_chimera_has_the_bubbles_and_activations_of_its_paper() -> None:
    for num_workers, num_pipes, number in chimeras():
        schedule = build(
            "chimera",
            num_workers=num_workers,
            num_micro_batches=number,
            num_pipes=num_pipes,
            scheme="concatenation",
        )
        simulation = simulate(schedule, forward=1, backward=1)
        formula = bubble_formula("chimera", num_workers, number, num_pipes=num_pipes, backward=1)
        assert formula is not None
        assert simulation.bubble_ratio == pytest.approx(formula.value, abs=1e-12)
        assert simulation.makespan == 2 * number + 2 * num_workers // num_pipes - 2
        held = simulation.peak_activations
        assert (min(held), max(held)) == activation_range("chimera", num_workers, number, num_pipes=num_pipes)


def test_chimera_of_one_unit_has_its_formula_where_backward_takes_twice_as_long() -> None:
    for num_workers, num_pipes, number in chimeras():
        if number == num_workers:
            schedule = build("chimera", num_workers=num_workers, num_micro_batches=number, num_pipes=num_pipes)
            formula = bubble_formula("chimera", num_workers, number, num_pipes=num_pipes, backward=2)
            assert formula is not None
            assert simulate(schedule, 1, 2).bubble_ratio == pytest.approx(formula.value, abs=1e-12)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_one_pipe_has_the_bubbles_and_activations_of_the_table(name: str) -> None:
    for num_workers in (1, 2, 4, 7):
        for number in (num_workers, num_workers + 1, 4 * num_workers):
            simulation = simulate(build(name, num_workers=num_workers, num_micro_batches=number), 1, 1)
            formula = bubble_formula(name, num_workers, number)
            assert formula is not None
            assert simulation.bubble_ratio == pytest.approx(formula.value, abs=1e-12)
            held = simulation.peak_activations
            assert (min(held), max(held)) == activation_range(name, num_workers, number)


@each(
    ("name", "stages_per_worker"),
    [("interleaved", 2), ("interleaved", 3), ("zero-bubble", 1), ("zero-bubble", 2), ("zero-bubble-v", 2)],
)
def test_torchs_schedules_have_the_bubbles_of_their_papers(name: str, stages_per_worker: int) -> None:
    for num_workers in (2, 4):
        for number in (2 * num_workers, 4 * num_workers):
            schedule = build(
                name, num_workers=num_workers, num_micro_batches=number, stages_per_worker=stages_per_worker
            )
            formula = bubble_formula(name, num_workers, number, stages_per_worker=stages_per_worker)
            assert formula is not None
            assert simulate(schedule, 1, 2).bubble_ratio == pytest.approx(formula.value, abs=1e-12)


def test_gems_is_known_as_a_formula_alone() -> None:
    assert "gems" not in SCHEDULES
    assert gems_bubble(4).value == pytest.approx(3 / 4.5)


def bubble_formula(name: str, *sizes: int, **options: Any) -> Formula | None:
    return SCHEDULES[name].bubble(FormulaTerms(*sizes, **options))


def activation_range(name: str, *sizes: int, **options: Any) -> tuple[int, int]:
    activations = SCHEDULES[name].activations
    assert activations is not None
    return activations(FormulaTerms(*sizes, **options))


def ratio(name: str, number: int, **options: str) -> float:
    return simulate(build(name, num_workers=4, num_micro_batches=number, **options), 1, 2).bubble_ratio  # type: ignore[arg-type]


def test_concatenation_alone_falls_behind_1f1b_where_backward_takes_twice_as_long() -> None:
    assert ratio("chimera", 16, scheme="concatenation") == pytest.approx(10 / 58)
    assert ratio("1f1b", 16) == pytest.approx(9 / 57)
    assert ratio("chimera", 16, scheme="forward-doubling") == pytest.approx(4 / 52)
    assert ratio("chimera", 32, scheme="backward-halving") == pytest.approx(2 / 50, rel=1e-9)


def test_forward_doubling_has_the_formula_for_every_multiple_of_the_workers() -> None:
    for num_workers in (2, 4, 6, 8):
        for multiple in range(1, 7):
            number = multiple * num_workers
            schedule = build(
                "chimera", num_workers=num_workers, num_micro_batches=number, scheme="forward-doubling"
            )
            simulation = simulate(schedule, 1, 2)
            assert simulation.bubble_ratio == pytest.approx((num_workers - 2) / (1.5 * number + num_workers - 2))
            if multiple > 1:
                held = simulation.peak_activations
                assert (min(held), max(held)) == (1.5 * num_workers + 1, 2 * num_workers)


def test_doubling_and_halving_beat_1f1b_for_every_number_of_micro_batches() -> None:
    for num_workers in (2, 4, 6):
        for number in range(2, 4 * num_workers + 2):
            single = simulate(build("1f1b", num_workers=num_workers, num_micro_batches=number)).makespan
            sizes = {"num_workers": num_workers, "num_micro_batches": number}
            doubled = simulate(build("chimera", **sizes, scheme="forward-doubling")).makespan
            halves = build(
                "chimera", num_workers=num_workers, num_micro_batches=2 * number, scheme="backward-halving"
            )
            assert doubled < single
            assert simulate(halves, forward=0.5, backward=1.0).makespan < single


def test_auto_is_never_slower_than_a_scheme_it_chooses_from() -> None:
    for number in (4, 6, 9, 16):
        for backward in (1, 2, 3):
            times = {"forward": 1.0, "backward": float(backward)}
            found = {
                scheme: simulate(
                    build("chimera", num_workers=4, num_micro_batches=number, scheme=scheme, **times), **times
                ).makespan
                for scheme in ("auto", "concatenation", "forward-doubling")
            }
            assert found["auto"] == min(found.values())


def test_gradient_sums_start_before_the_last_computation_where_a_bubble_follows() -> None:
    """Chimera's first and last worker, at any D and N; elsewhere they start right after it."""
    for num_workers, number in ((4, 4), (4, 16), (6, 6), (8, 24)):
        spans = simulate(build("chimera", num_workers=num_workers, num_micro_batches=number), 1, 2).spans
        for worker in (0, num_workers - 1):
            last = max(span.end for span in spans[worker] if span.operation.kind in COMPUTATIONS)
            assert min(span.start for span in spans[worker] if span.operation.kind is Kind.SYNC) < last


def two_workers(*orders: tuple[Operation, ...]) -> Schedule:
    return Schedule("hand-made", 1, ((0, 1),), orders)


def times_of(simulation: Simulation, worker: int) -> list[tuple[str, float, float]]:
    return [(span.operation.kind.value, span.start, span.end) for span in simulation.spans[worker]]


def test_every_operation_has_its_start_and_end() -> None:
    schedule = build("1f1b", num_workers=2, num_micro_batches=1)
    simulation = simulate(schedule, [1, 2], [3, 4], latency=0.25, transfer=0.5, sync=[1, 2])
    assert times_of(simulation, 0) == [
        ("F", 0, 1),
        ("SA", 1, 1),
        ("RG", 1, 8.5),
        ("B", 8.5, 11.5),
        ("S", 11.5, 11.5),
    ]
    assert times_of(simulation, 1) == [
        ("RA", 0, 1.75),
        ("F", 1.75, 3.75),
        ("B", 3.75, 7.75),
        ("SG", 7.75, 7.75),
        ("S", 7.75, 7.75),
    ]
    assert (simulation.makespan, simulation.busy, simulation.step) == (11.5, 10, 12.5)
    assert simulation.bubble_ratio == pytest.approx((23 - 10) / 23)
    assert simulation.sync_ends == (12.5, 9.75)
    assert simulation.unoverlapped == (1.0, 0.0)


def test_messages_on_one_way_follow_each_other() -> None:
    schedule = build("gpipe", num_workers=2, num_micro_batches=3)
    arrivals = [span.end for span in simulate(schedule, 1, 1, transfer=5).spans[1] if span.operation.kind == "RA"]
    assert arrivals == [6, 11, 16]


def test_a_sum_waits_for_all_holders_and_a_worker_takes_part_in_one_at_a_time() -> None:
    """Chimera on 2 workers, both stages on both: stage 1 is done at 3 on both, stage 0 at 6."""
    simulation = simulate(build("chimera", num_workers=2, num_micro_batches=2), 1, 2, sync=[10, 20])
    assert simulation.makespan == 6
    assert simulation.sync_ends == (36, 36)
    assert simulation.step == 36


def test_a_split_backward_holds_activations_until_the_weights_have_their_gradients() -> None:
    order = [Operation(kind, 0, 0, (number,)) for number in (0, 1) for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT)]
    order += [Operation(Kind.BACKWARD_WEIGHT, 0, 0, (number,)) for number in (0, 1)]
    simulation = simulate(
        Schedule("late", 2, ((0,),), (tuple(order),)),
        1,
        2,
        inputs=0.5,
        weights=1.5,
        activation=[7],
        split_activation=[3],
    )
    assert simulation.peak_activations == (2 * (7 + 3),)
    assert simulation.makespan == 2 * (1 + 0.5 + 1.5)


def test_a_doubled_forward_may_take_less_than_two() -> None:
    schedule = build("chimera", num_workers=2, num_micro_batches=4, scheme="forward-doubling")
    assert simulate(schedule, 1, 2).makespan == 12
    assert simulate(schedule, 1, 2, doubled=1.5).makespan == 11


def test_waiting_for_ever_is_an_error_with_the_workers_that_do() -> None:
    receive = Operation(Kind.RECEIVE_ACTIVATION, 1, 0, (0,))
    with pytest.raises(ScheduleError, match="worker 1 for RECEIVE_ACTIVATION of micro-batch 0"):
        simulate(two_workers((), (receive,)))


def test_times_for_another_number_of_stages_are_refused() -> None:
    with pytest.raises(ScheduleError, match="3 times were given for 2 stages"):
        simulate(build("1f1b", num_workers=2, num_micro_batches=1), [1, 2, 3])
