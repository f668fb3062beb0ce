"""What layers of a pipeline cost on a grid, and which layout is chosen for that."""

from __future__ import annotations

from typing import Any

import pytest

from cells import each
from grid_tasks import build_chain_task
from oakum_worker.parallel.blocks import Block
from oakum_worker.parallel.grid_stages.arranging import StackedArranger
from oakum_worker.parallel.grid_stages.costs import LayerProducts, on_grid
from oakum_worker.parallel.grids.arranging import GridArranger
from oakum_worker.parallel.grids.costs import Product
from oakum_worker.parallel.grids.parts import GridParts
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.parallel.pipeline.costs import LayerCost, ModelProfile, Tied
from oakum_worker.parallel.tensor.grids import Grid
from training_ranks import build_spec


@pytest.mark.parametrize("keep", [True, False])
def test_a_cube_takes_an_eighth_and_waits_for_what_it_receives(keep: bool) -> None:
    """Of one product of X (8 x 4) and W (4 x 6): (q-1)(MK + KN + MN)/q^3 elements forward, as many backward, and
    what was gathered again unless it is kept."""
    layer = LayerCost((0.8,), (1.6,), 80, 160, 800, 40)
    profile = ModelProfile((4,), (layer,), tied=(Tied((0,), 16, 32),))
    products = [LayerProducts(0, (Product(2, 4, 6),), 8)]
    links = LinkCosts(latency_s=0.01, bandwidth_bytes_per_s=1000)
    made = on_grid(profile, products, Grid("3d", 2), links, keep_gathered=keep)
    elements = {"x": 8 * 4 / 8, "w": 4 * 6 / 8, "y": 8 * 6 / 8}
    there_s = sum(elements.values()) * 8 / 1000 + 3 * 0.01
    again_s = 0 if keep else (elements["x"] + elements["w"]) * 8 / 1000 + 2 * 0.01
    found = made.layers[0]
    assert found.forward_s == pytest.approx((0.8 / 8 + there_s / 4,))
    assert found.backward_s == pytest.approx((1.6 / 8 + (there_s + again_s) / 4,))
    sizes = found.parameter_bytes, found.optimizer_bytes, found.activation_bytes, found.output_bytes
    assert sizes == (10, 20, 100, 5)
    assert made.tied == (Tied((0,), 2, 4),)


def test_each_home_has_parts_of_its_own() -> None:
    left, right = Block.of([range(2)]), Block.of([range(2, 4)])
    parts = GridParts("1d-2", 2, {"a": [left, right], "b": [left, right]}, {"a": 0, "b": 1}, 2)
    (first,) = (part for part in parts.of(0, [1]) if part != parts.common(1))
    assert (parts.block("a", first.number), parts.block("b", first.number)) == (None, left)
    assert set(parts.of(0, [0])).isdisjoint(parts.of(0, [1]))
    assert len({*parts.of(0, [0, 1]), *parts.of(1, [0, 1])}) == first.num_parts


def test_what_the_spec_leaves_open_is_chosen_by_the_link() -> None:
    """One rank where a message takes seconds, a grid of all where it takes nothing and the batch is one sample."""

    def chosen(links: LinkCosts, batch: int) -> tuple[int, int]:
        spec = build_spec(parallel={"tensor": {}, "pipeline": {"micro_batch": 1}}, global_batch=batch, max_nodes=1)
        arranger = StackedArranger(build_chain_task(), spec)
        arranger.note_links(links)
        found = arranger.layout(8)
        return found.grid.num_ranks, found.num_replicas

    assert chosen(LinkCosts(1.0, 1.0), 8) == (1, 1)
    assert chosen(LinkCosts(1e-12, 1e15), 1) == (8, 1)


@each("options", [{"pipeline": {}}, {"tensor": {}}, {"tensor": {}, "pipeline": {}}], ids=str)
def test_no_answer_is_left_of_links_as_they_were_before(options: dict[str, Any]) -> None:
    """An arranger that has answered before the links were measured answers as one that has not."""

    def arranger() -> Arranger | GridArranger:
        task, spec = build_chain_task(), build_spec(parallel=options, global_batch=64, max_nodes=8)
        if "pipeline" not in options:
            return GridArranger(task, spec)
        return StackedArranger(task, spec) if "tensor" in options else Arranger(task, spec)

    asked_before = arranger()
    asked_before.measure_model()
    asked_before.predicted_curve()
    for links in (LinkCosts(10.0, 1.0), LinkCosts(1e-12, 1e15)):
        fresh = arranger()
        fresh.agree([asked_before.measurements])
        for one in (asked_before, fresh):
            one.note_links(links)
        assert asked_before.layout(8) == fresh.layout(8)
        assert asked_before.predicted_curve() == fresh.predicted_curve()
