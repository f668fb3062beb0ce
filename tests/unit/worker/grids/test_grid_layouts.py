"""Grids for ranks, memory and links as they are."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from num_examples import scaled
from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.arranging import curve
from oakum_worker.parallel.grids.costs import GridProfile, Product, product_s, rising_points, traffic
from oakum_worker.parallel.grids.layouts import GridChoices, choose_grid, grids_up_to, predict_grid
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.layouts import Layout
from oakum_worker.parallel.tensor.grids import Grid

PRODUCTS = (Product(32, 1024, 4096), Product(32, 4096, 1024)) * 4
SIZE = sum(4 * product.inner * product.columns for product in PRODUCTS)
PROFILE = GridProfile(PRODUCTS, ((1e3, 1e-6), (1e9, 1e-2)), ((1, 1e-4),), 4, SIZE, 2 * SIZE, 32 * 8 * 4 * 5120)
CUBE, SQUARE, LINE = Grid("3d", 2), Grid("2d", 2), Grid("1d", 8)


def test_a_cube_receives_what_the_paper_says() -> None:
    """(q-1)(MK + KN + MN)/q^3 in forward and in backward; what was gathered is gathered again unless kept."""
    product, q = Product(3, 8, 16), 2
    m, k, n = 4 * 3, 8, 16
    for number in (0, 1):
        kept = traffic(CUBE, product, number, 4, keep_gathered=True)
        again = traffic(CUBE, product, number, 4, keep_gathered=False)
        assert kept.elements == 2 * (q - 1) * (m * k + k * n + m * n) / q**3
        assert again.elements == kept.elements + (q - 1) * (m * k + k * n) / q**3
        assert (kept.steps, again.steps) == (6, 8)


def test_a_line_never_sends_weights_and_one_rank_receives_nothing() -> None:
    product, m = Product(3, 8, 16), 4 * 3
    into = traffic(LINE, product, 0, 4, keep_gathered=True)
    out = traffic(LINE, product, 1, 4, keep_gathered=True)
    assert (into.elements, out.elements) == (2 * 7 * m * 8 / 8, 2 * 7 * m * 16 / 8)
    assert traffic(Grid("1d", 1), product, 0, 4, keep_gathered=False).elements == 0


def brute_force(num_ranks: int, profile: GridProfile, links: LinkCosts, choices: GridChoices) -> Layout:
    """Every grid of every side, every number of replicas, every number of micro-batches that may be chosen."""
    sides = [Grid(kind, side) for kind in ("1d", "2d", "3d", "shards") for side in range(1, 17)]
    grids = [grid for grid in sides if grid.num_ranks <= num_ranks and not (grid.side == 1 and grid.kind != "1d")]
    if choices.asked is not None and choices.asked in grids:
        grids = [choices.asked]
    found = []
    for grid in grids:
        if choices.able is not None and grid not in choices.able:
            continue
        most = min(num_ranks // grid.num_ranks, choices.global_batch)
        for replicas in range(most if grids == [choices.asked] else 1, most + 1):
            share = math.ceil(choices.global_batch / replicas)
            numbers = {2**power for power in range(12) if 2**power < share} | {share}
            if choices.micro_batch is not None:
                numbers = {math.ceil(share / choices.micro_batch)}
            found += [predict_grid(grid, replicas, number, profile, links, choices) for number in numbers]
    fitting = [layout for layout in found if layout.fits]
    if fitting:
        return min(fitting, key=lambda layout: layout.predicted_step_s)
    return min(found, key=lambda layout: layout.most_bytes)


@st.composite
def profiles(draw: Any) -> GridProfile:
    side = st.sampled_from([8, 64, 1024, 8192])
    products = tuple(Product(draw(side), draw(side), draw(side)) for _ in range(draw(st.integers(1, 4))))
    size = sum(4 * product.inner * product.columns for product in products)
    per_flop = draw(st.sampled_from([1e-13, 1e-11, 1e-9]))
    speed = ((1e3, 1e3 * per_flop), (1e9, 1e9 * per_flop))
    others = draw(st.sampled_from([1e-6, 1e-2]))
    return GridProfile(products, speed, ((1, others), (16, 10 * others)), 4, size, 2 * size, 4.0 * size)


@settings(max_examples=scaled(150), deadline=None)
@given(
    profiles(),
    st.integers(1, 70),
    st.integers(1, 40),
    st.sampled_from([math.inf, 3e5, 1e8, 1e10]),
    st.sampled_from([LinkCosts(), LinkCosts(1e-4, 1e8), LinkCosts(1e-6, 1e11)]),
    st.sampled_from([None, CUBE, SQUARE, LINE]),
    st.sampled_from([None, 3]),
    st.booleans(),
    st.booleans(),
)
def test_the_choice_is_as_fast_as_the_best_of_all_layouts(
    profile: GridProfile,
    num_ranks: int,
    global_batch: int,
    memory: float,
    links: LinkCosts,
    asked: Grid | None,
    micro_batch: int | None,
    keep: bool,
    only_some: bool,
) -> None:
    able = (
        frozenset([Grid("1d", 1), Grid("1d", 2), SQUARE, CUBE, *([asked] if asked else [])]) if only_some else None
    )
    choices = GridChoices(global_batch, memory, asked, micro_batch, keep, able)
    chosen, best = (find(num_ranks, profile, links, choices) for find in (choose_grid, brute_force))
    assert chosen.fits == best.fits
    if best.fits:
        assert chosen.predicted_step_s == pytest.approx(best.predicted_step_s, rel=1e-8)
    else:
        assert chosen.most_bytes == best.most_bytes
    assert chosen.num_ranks <= num_ranks
    assert not choices.asked or choices.asked.num_ranks > num_ranks or chosen.grid == choices.asked


def test_which_grid_is_fastest_depends_on_the_link_and_on_the_sizes() -> None:
    fast, slow = LinkCosts(1e-6, 1e11), LinkCosts(1e-4, 1e8)
    alone = GridChoices(global_batch=1)
    assert choose_grid(8, PROFILE, LinkCosts(), GridChoices(64)).grid == Grid("1d", 1)
    assert choose_grid(8, PROFILE, LinkCosts(1e-2, 1e6), alone).grid == Grid("1d", 1)
    # One sample cannot be divided among replicas, so only a grid uses more than one rank.
    assert choose_grid(8, PROFILE, fast, alone).grid.num_ranks > 1
    large = replace(PROFILE, products=(Product(4096, 4096, 4096), Product(4096, 4096, 4096)))
    by_grid = {
        grid: predict_grid(grid, 1, 1, large, slow, GridChoices(1)).predicted_step_s for grid in (LINE, CUBE)
    }
    assert by_grid[CUBE] < by_grid[LINE]
    narrow = replace(PROFILE, products=(Product(1, 4096, 4096), Product(1, 4096, 4096)))
    by_grid = {
        grid: predict_grid(grid, 1, 1, narrow, slow, GridChoices(1)).predicted_step_s for grid in (LINE, CUBE)
    }
    assert by_grid[LINE] < by_grid[CUBE]


def test_a_model_that_is_too_large_for_one_rank_goes_onto_a_grid() -> None:
    slow = LinkCosts(1e-4, 1e8)
    plain = predict_grid(Grid("1d", 1), 1, 1, PROFILE, slow, GridChoices(8))
    tight = GridChoices(8, memory_bytes=plain.most_bytes / 4)
    chosen = choose_grid(8, PROFILE, slow, tight)
    assert (chosen.fits, chosen.grid.num_ranks > 1) == (True, True)
    assert not choose_grid(8, PROFILE, slow, replace(tight, memory_bytes=10)).fits


def test_shards_receive_weights_alone_and_are_chosen_for_large_batches_of_a_model_that_fits_on_no_rank() -> None:
    product, shards = Product(3, 8, 16), Grid("shards", 4)
    assert traffic(shards, product, 0, 4, keep_gathered=False).elements == 3 * 3 / 4 * 8 * 16
    slow, room = LinkCosts(1e-4, 1e8), GridChoices(1024)
    lean = replace(PROFILE, activation_bytes=PROFILE.activation_bytes / 16)
    replica = predict_grid(Grid("1d", 1), 8, 128, lean, slow, room)
    assert choose_grid(8, lean, slow, room).grid == Grid("1d", 1)
    tight = replace(room, memory_bytes=replica.most_bytes / 3)
    assert choose_grid(8, lean, slow, tight).grid == Grid("shards", 8)


def test_fewer_ranks_than_a_cube_are_laid_out_otherwise_and_more_are_replicas_of_it() -> None:
    links, asked = LinkCosts(1e-6, 1e11), GridChoices(64, asked=CUBE)
    sizes = {n: choose_grid(n, PROFILE, links, asked) for n in (6, 8, 15, 17)}
    assert sizes[6].grid != CUBE
    assert [(sizes[n].grid, sizes[n].num_replicas) for n in (8, 15, 17)] == [(CUBE, 1), (CUBE, 1), (CUBE, 2)]


def test_a_curve_rises() -> None:
    layouts = tuple(choose_grid(n, PROFILE, LinkCosts(1e-6, 1e11), GridChoices(8)) for n in range(1, 20))
    points = curve(layouts)
    assert points[0] == (1, layouts[0].samples_per_s)
    assert all(a < b and r < s for (a, r), (b, s) in itertools.pairwise(points))


def test_what_no_layout_exists_for_is_an_error() -> None:
    with pytest.raises(ScheduleError, match="0 samples on 4 ranks have no layout: give at least 1 of each"):
        choose_grid(4, PROFILE, LinkCosts(), GridChoices(0))
    with pytest.raises(ScheduleError, match="goes onto no grid of 4 ranks or fewer"):
        choose_grid(4, PROFILE, LinkCosts(), GridChoices(8, able=frozenset()))


def test_a_products_time_is_between_those_that_were_measured() -> None:
    speed = rising_points([(100.0, 2.0), (10.0, 3.0), (1000.0, 8.0), (100.0, 9.0)])
    assert speed == ((10.0, 3.0), (100.0, 3.0), (1000.0, 8.0))
    assert [product_s(speed, flops) for flops in (1, 10, 550, 1000, 2000)] == [3.0, 3.0, 5.5, 8.0, 16.0]


def test_grids_have_no_more_ranks_than_there_are() -> None:
    lines, shards = [Grid("1d", n) for n in range(1, 9)], [Grid("shards", n) for n in range(2, 9)]
    assert grids_up_to(8) == [*lines, SQUARE, CUBE, *shards]
