"""Layouts for ranks, memory and links as they are."""

import math
from dataclasses import fields, replace

import pytest

from cells import each
from layouts_of_ranks import best_layouts
from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.arranging import curve
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline import layouts
from oakum_worker.parallel.pipeline.costs import LayerCost, ModelProfile, Tied, seconds, stage_costs
from oakum_worker.parallel.pipeline.layouts import Choices, LayoutCandidate, choose, predict
from oakum_worker.parallel.pipeline.schedules import build, exists
from oakum_worker.parallel.pipeline.validation import validate
from oakum_worker.schedule_table import NAMES

LAYER = LayerCost(
    (1.0, 0.8), (2.0, 1.6), parameter_bytes=100, optimizer_bytes=200, activation_bytes=50, output_bytes=5
)
PROFILE = ModelProfile((1, 2), (LAYER,) * 4, input_bytes=5)


def test_plain_data_parallelism_is_fastest_where_it_fits_and_links_are_free() -> None:
    chosen = choose(4, PROFILE, LinkCosts(), Choices(16))
    assert (chosen.num_replicas, chosen.num_workers, chosen.micro_batch) == (4, 1, 2)
    assert chosen.predicted_step_s == pytest.approx(4 * 4 * 2.4)
    assert chosen.samples_per_s == pytest.approx(4 * 1 / (4 * 2.4))


def test_a_model_too_large_for_one_rank_is_cut() -> None:
    chosen = choose(4, PROFILE, LinkCosts(), Choices(16, memory_bytes=1000))
    assert chosen.num_workers == 4
    assert chosen.fits
    assert max(chosen.peak_bytes) <= 1000
    assert curve(best_layouts(4, PROFILE, LinkCosts(), Choices(16, memory_bytes=1000)))[0][0] > 1


def test_slow_links_make_stages_better_than_summing_all_gradients() -> None:
    slow = LinkCosts(latency_s=0.0, bandwidth_bytes_per_s=2.0)
    assert choose(4, PROFILE, slow, Choices(16)).num_workers > 1


def test_activations_are_computed_again_only_where_they_do_not_fit() -> None:
    """Weights, gradients and optimizer take 1,600 bytes, one sample's activations 200, its inputs 5 a layer."""
    plain = choose(1, PROFILE, LinkCosts(), Choices(2, memory_bytes=2000))
    assert (plain.recompute, plain.micro_batch, plain.peak_bytes) == (False, 2, (2000,))
    single = Choices(8, memory_bytes=900, num_workers=2, micro_batch=1, schedules=("gpipe",))
    assert not choose(2, PROFILE, LinkCosts(), single).fits
    tight = Choices(8, memory_bytes=950, num_workers=2, micro_batch=1, schedules=("gpipe",))
    again = choose(2, PROFILE, LinkCosts(), tight)
    assert (again.recompute, again.fits, again.peak_bytes) == (True, True, (800 + 8 * 5 + 100,) * 2)


def test_where_nothing_fits_the_smallest_is_given_and_said_not_to_fit() -> None:
    chosen = choose(2, PROFILE, LinkCosts(), Choices(4, memory_bytes=10))
    assert not chosen.fits
    assert max(chosen.peak_bytes) < 1600
    assert curve(best_layouts(2, PROFILE, LinkCosts(), Choices(4, memory_bytes=10))) == ()


def test_there_is_a_layout_for_every_number_of_ranks() -> None:
    for workers in (None, 1, 2, 3, 7):
        for schedules in (("chimera",), ("1f1b",)):
            choices = Choices(3, schedules=schedules, num_workers=workers)
            for num_ranks, layout in enumerate(best_layouts(9, PROFILE, LinkCosts(), choices), start=1):
                assert layout.num_ranks <= num_ranks
                validate(layout.build())


def test_a_fixed_number_of_workers_is_kept_once_there_are_as_many_ranks() -> None:
    found = best_layouts(6, PROFILE, LinkCosts(), Choices(12, num_workers=2))
    assert [(layout.num_replicas, layout.num_workers) for layout in found] == [
        (1, 1),
        (1, 2),
        (1, 2),
        (2, 2),
        (2, 2),
        (3, 2),
    ]


def test_the_curve_has_points_only_where_more_ranks_are_faster() -> None:
    found = best_layouts(5, PROFILE, LinkCosts(), Choices(2))
    points = curve(found)
    assert [rate for _, rate in points] == sorted({layout.samples_per_s for layout in found})
    assert len(points) < len(found)
    assert points[0] == (1, pytest.approx(2 / (4 * 2 * 2.4)))


def test_very_many_micro_batches_are_predicted_as_if_all_were_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    uneven = ModelProfile((1, 2), tuple(LayerCost((i + 1.0,) * 2, (3.0 - i / 2,) * 2) for i in range(4)))
    for schedule, scheme in (
        ("1f1b", None),
        ("gpipe", None),
        ("chimera", "concatenation"),
        ("chimera", "forward-doubling"),
    ):
        for number in (61, 70, 96):
            way = LayoutCandidate(1, 4, 4, schedule, scheme, number, 1)  # type: ignore[arg-type]
            quick = predict(way, uneven, LinkCosts(0.25, 10.0), Choices(number))
            with monkeypatch.context() as patch:
                patch.setattr(layouts, "_PERIODS_SIMULATED", 1000)
                whole = predict(way, uneven, LinkCosts(0.25, 10.0), Choices(number))
            assert quick.predicted_step_s == pytest.approx(whole.predicted_step_s, rel=1e-9)
            assert quick.peak_bytes == whole.peak_bytes


def test_a_layout_builds_the_schedule_that_was_simulated() -> None:
    chosen = choose(4, PROFILE, LinkCosts(), Choices(32, num_workers=4, schedules=("chimera",)))
    schedule = chosen.build()
    assert (schedule.name, schedule.num_workers) == ("chimera", 4)
    assert schedule.num_micro_batches == chosen.num_micro_batches
    assert {field.name for field in fields(chosen)} >= {"num_replicas", "cuts", "recompute", "predicted_step_s"}


def test_it_is_known_which_schedules_exist_without_building_them() -> None:
    for name in NAMES:
        for scheme in ("concatenation", "forward-doubling", "backward-halving") if name == "chimera" else (None,):
            for num_workers in (1, 2, 3, 4):
                for number in range(14):
                    sizes = {"num_workers": num_workers, "num_micro_batches": number}
                    for pipes in (2, 4) if name == "chimera" else (2,):
                        try:
                            build(name, **sizes, scheme=scheme or "auto", num_pipes=pipes)
                            built = True
                        except ScheduleError:
                            built = False
                        assert exists(name, num_workers, number, scheme, pipes) == built, (
                            name,
                            scheme,
                            sizes,
                            pipes,
                        )


def test_a_sum_takes_the_time_of_the_papers_formula() -> None:
    assert LinkCosts(3.0, 10.0).all_reduce_s(4, 100) == pytest.approx(2 * 2 * 3 + 2 * 3 * (100 / 10) / 4)
    assert LinkCosts(3.0, 10.0).all_reduce_s(1, 100) == 0.0


def test_times_between_and_beyond_the_sizes_measured() -> None:
    assert [seconds((2, 4), (3.0, 2.0), size) for size in (1, 2, 3, 4, 8)] == [3.0, 6.0, 7.0, 8.0, 16.0]


def test_stages_cost_what_their_layers_do() -> None:
    costs = stage_costs(PROFILE, (range(0, 1), range(1, 4)), 2, LinkCosts(0.0, 10.0), recompute=True)
    assert costs.forward_s == pytest.approx((1.6, 4.8))
    assert costs.backward_s == pytest.approx((3.2 + 1.6, 9.6 + 4.8))
    assert costs.doubled_s == pytest.approx((3.2, 9.6))
    assert costs.transfer_s == (1.0, 1.0)
    assert (costs.state_bytes, costs.parameter_bytes) == ((400, 1200), (100, 300))
    assert (costs.held_bytes, costs.working_bytes) == ((10, 10), (100, 300))


def test_weights_that_layers_share_are_there_once_in_each_stage() -> None:
    """Layers 0, 1 and 3 share 60 of the 100 bytes of weights that each has, and 120 of 200 bytes of optimizer
    state."""
    tied = ModelProfile((1, 2), (LAYER,) * 4, tied=(Tied((0, 1, 3), 60, 120),))
    costs = stage_costs(tied, (range(0, 2), range(2, 4)), 1, LinkCosts())
    assert costs.state_bytes == (800 - 2 * 60 - 120, 800)
    assert costs.parameter_bytes == (200 - 2 * 60, 200 - 60)
    assert costs.tied_bytes == (((0, 1), 60),)
    whole = stage_costs(tied, (range(0, 4),), 1, LinkCosts())
    assert (whole.state_bytes, whole.parameter_bytes, whole.tied_bytes) == ((1600 - 2 * 240,), (400 - 120,), ())


def test_the_sum_of_weights_that_two_stages_share_comes_last() -> None:
    links, choices = LinkCosts(0.0, 10.0), Choices(8)
    layer = LayerCost((1.0,), (2.0,), parameter_bytes=50)
    for num_replicas, number_of_holders in ((1, 2), (2, 4)):
        way = LayoutCandidate(num_replicas, 2, 2, "1f1b", None, 4, 1)
        apart = ModelProfile((1,), (replace(layer, parameter_bytes=20),) * 2)
        tied = ModelProfile((1,), (layer,) * 2, tied=(Tied((0, 1), 30),))
        less_s, more_s = (predict(way, p, links, choices).predicted_step_s for p in (apart, tied))
        assert more_s - less_s == pytest.approx(links.all_reduce_s(number_of_holders, 30))


def test_a_split_backward_pass_takes_what_its_layers_parts_do() -> None:
    """The model's own inputs have no gradients: its first stage does all in the second part."""
    layers = (LAYER,) * 3 + (replace(LAYER, parameter_bytes=0, split=(1.0, 0.0)), LAYER, LAYER)
    profile = ModelProfile((1, 2), layers)
    whole = stage_costs(profile, (range(0, 2), range(2, 3), range(3, 6)), 1, LinkCosts())
    assert whole.split_s == ((0.0, 1.0 + 2.0), (1.0, 1.0), (2.0 + 1.0 + 1.0, 1.0 + 1.0))
    again = stage_costs(profile, (range(0, 2), range(2, 3), range(3, 6)), 1, LinkCosts(), recompute=True)
    assert again.split_s == ((0.0, 3.0 + 2.0), (1.0 + 1.0, 1.0), (4.0 + 3.0, 2.0))


def test_what_is_computed_again_for_a_split_backward_pass_is_held_until_its_second_part() -> None:
    """State takes 800 bytes of each stage, a micro-batch's input 5, and its activations 100."""
    way = LayoutCandidate(1, 2, 2, "zero-bubble", None, 6, 1, recompute=True)
    held = most = 0
    for operation in way.build().operations[1]:
        held += {"F": 5, "I": 100, "W": -105}.get(operation.kind.value, 0)
        most = max(most, held)
    assert most > 105 + 5
    first, last = predict(way, PROFILE, LinkCosts(), Choices(6)).peak_bytes
    assert last == 800 + most
    assert first == 800 + 100 + 2 * 5


def test_workers_that_take_what_arrives_may_hold_all_that_is_on_its_way() -> None:
    """But the last one, which computes a micro-batch's backward pass at once: 100 bytes of each on each."""
    way = LayoutCandidate(1, 2, 2, "1f1b", None, 8, 1)
    for in_flight, expected in ((None, (1000, 900)), (5, (1300, 900)), (20, (1600, 900))):
        choices = Choices(8, message_driven=True, in_flight=in_flight)
        assert predict(way, PROFILE, LinkCosts(), choices).peak_bytes == expected


def test_chimera_with_more_pipes_is_chosen_where_it_is_asked_for() -> None:
    layers = ModelProfile((1,), (LayerCost((1.0,), (2.0,)),) * 8)
    for num_pipes, num_ranks, expected in ((2, 8, 2), (4, 8, 4), (8, 8, 8), (4, 6, 2)):
        choices = Choices(16, num_workers=8, schedules=("chimera",), num_pipes=num_pipes)
        chosen = choose(num_ranks, layers, LinkCosts(), choices)
        assert (chosen.num_workers, chosen.num_pipes) == (num_ranks, expected)
        assert chosen.build().num_pipes == expected


def test_no_micro_batch_is_smaller_than_the_smallest() -> None:
    picky = replace(PROFILE, smallest=4)
    for batch, num_ranks, expected in ((9, 1, 2), (7, 1, 1), (3, 1, 1), (9, 2, 1), (7, 2, 1)):
        chosen = choose(num_ranks, picky, LinkCosts(), Choices(batch, num_workers=1, micro_batch=1))
        assert (chosen.num_replicas, chosen.num_micro_batches) == (min(num_ranks, max(1, batch // 4)), expected)


@each(
    ("split", "expected"),
    [((0.5, 0.5), ("zero-bubble", 16 * 9 + 3 * 3)), ((0.5, 0.85), ("1f1b", 19 * 9)), (None, ("1f1b", 19 * 9))],
)
def test_a_backward_pass_is_split_where_its_parts_take_little_more_than_it(
    split: tuple[float, float] | None, expected: tuple[str, float]
) -> None:
    """1F1B takes (N+D-1)(F+B) = 19 * 9 layers' seconds, zero bubble N(F+B) and (D-1)F."""
    profile = ModelProfile((1,), (LayerCost((1.0,), (2.0,), parameter_bytes=1, split=split),) * 12)
    chosen = choose(4, profile, LinkCosts(), Choices(16, num_workers=4, schedules=("zero-bubble", "1f1b")))
    assert (chosen.schedule, chosen.predicted_step_s) == (expected[0], pytest.approx(expected[1]))


@each(
    ("sizes", "layers", "message"),
    [
        ((), (LAYER,), "sizes in rising order"),
        ((2, 1), (LAYER,), "sizes in rising order"),
        ((1, 2), (), "at least one layer"),
        ((1,), (LAYER,), "layer 0 needs 1 times"),
        ((1, 2), (LAYER, LayerCost((1.0, math.nan), (1.0, 1.0))), "layer 1 needs 2 times"),
    ],
)
def test_a_profile_that_says_nothing_is_refused(
    sizes: tuple[int, ...], layers: tuple[LayerCost, ...], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        ModelProfile(sizes, layers)


def test_no_ranks_and_no_samples_have_no_layout() -> None:
    for num_ranks, batch in ((0, 4), (4, 0)):
        with pytest.raises(ScheduleError, match="have no layout"):
            choose(num_ranks, PROFILE, LinkCosts(), Choices(batch))
