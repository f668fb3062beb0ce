"""Advice from measurements: sizes, nodes, exchange and what is written."""

from __future__ import annotations

from typing import Any

import pytest

from oakum_client.cli.advising.choice import advise_spec, bounds_warning, what_would_fit
from oakum_client.cli.advising.mini_batch import advise_mini_batch, step_rate
from oakum_client.cli.advising.nodes import (
    exchange_advice,
    nodes_from_layouts,
    nodes_from_passes,
    nodes_from_rates,
)
from oakum_client.cli.advising.report import choice_lines, exchange_lines, mini_batch_lines, nodes_lines
from oakum_solver.advice.exchange import Link
from oakum_solver.advice.pass_time import PassTime, fit_pass_time
from oakum_solver.errors import ProblemError
from oakum_worker.spec import TrainerSpec

LINK = Link(1e-4, 1e9)
STATIC = 3 * 1000


def _trial(algorithm: str, seconds: float, kept: int, buffer: int = 0) -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "seconds": seconds,
        "kept_bytes": kept,
        "buffer_bytes": buffer,
        "difference": 0.0,
    }


def _layer(samples: int) -> dict[str, Any]:
    trials = [
        _trial("as built", 1e-3 * samples, 100 * samples),
        _trial("hungry", 0.5e-3 * samples, 400 * samples),
        _trial("recompute", 1.5e-3 * samples, 10 * samples),
    ]
    skipped = [{"algorithm": "cuDNN benchmark", "why": "no GPU"}]
    return {"names": ["conv"], "kind": "Conv2d", "samples": samples, "trials": trials, "skipped": skipped}


def facts(limit: int, sizes: tuple[int, ...] = (1, 2, 4, 8), **changes: Any) -> dict[str, Any]:
    """Of a task with 3,000 bytes whatever the samples and 150 for each, 100 of these in one layer."""
    rows = [
        {"samples": m, "working_bytes": 150 * m, "sample_bytes": 50 * m, "seconds": 1e-3 * (2 + m)} for m in sizes
    ]
    return {
        "device": "cpu", "limit_bytes": limit, "share": 16, "num_samples": 1000, "weight_bytes": 1000,
        "gradient_bytes": 1000, "optimizer_bytes": 1000, "smallest": 1, "smallest_working_bytes": 150,
        "largest": max(sizes, default=0), "sizes": rows, "uncertainty": 0.0, "update_s": 1e-3,
        "layers": [_layer(2), _layer(8)],
        "precisions": {"float32": 1000.0, "bfloat16": 1900.0}, "layouts": [], **changes,
    }  # fmt: skip


def spec(**changes: Any) -> TrainerSpec:
    return TrainerSpec(
        **{"name": "a", "entrypoint": "a:b", "global_batch": 16, "epochs": 2, "max_nodes": 4} | changes
    )


def test_the_fastest_mini_batch_that_fits_is_advised() -> None:
    batch = advise_mini_batch(facts(STATIC + 150 * 8))
    assert batch.best is not None
    assert batch.best.samples == 8
    assert batch.best.samples_per_s == pytest.approx(16 / (2 * 0.010))
    assert batch.best.peak_bytes == STATIC + 150 * 8


def test_a_faster_algorithm_is_chosen_only_where_its_memory_is_left() -> None:
    ample = advise_mini_batch(facts(STATIC + 10_000))
    short = advise_mini_batch(facts(STATIC + 150 * 8))
    by_size = {row.samples: row.algorithms for row in ample.sizes}
    assert by_size[8] == ("hungry",)
    assert {row.samples: row.algorithms for row in short.sizes}[8] == ("as built",)
    assert {row.samples: row.algorithms for row in short.sizes}[2] == ("hungry",)
    assert by_size[16] == ("hungry",)


def test_workspaces_count_once_where_they_are_shared_and_for_each_layer_where_they_are_not() -> None:
    trials = [_trial("as built", 8e-3, 0), _trial("buffered", 4e-3, 0, buffer=1000)]
    layers = [
        {"names": [name], "kind": "Conv2d", "samples": 8, "trials": trials, "skipped": []} for name in ("a", "b")
    ]
    measured = facts(STATIC + 150 * 8 + 1500, sizes=(8,), layers=layers)
    chosen = {
        shared: next(row for row in advise_mini_batch(measured, shared=shared).sizes if row.samples == 8)
        for shared in (True, False)
    }
    assert chosen[True].algorithms == ("buffered", "buffered")
    assert sorted(chosen[False].algorithms) == ["as built", "buffered"]
    lines = "\n".join(mini_batch_lines(measured, advise_mini_batch(measured, shared=False), []))
    assert "each layer has its own workspace" in lines


def test_a_gain_that_measuring_does_not_tell_from_none_changes_nothing() -> None:
    measured = facts(STATIC + 10_000)
    for layer in measured["layers"]:
        layer["trials"][1]["seconds"] = 0.985 * layer["trials"][0]["seconds"]
    assert {row.algorithms for row in advise_mini_batch(measured).sizes} == {("as built",)}


def test_below_the_sizes_that_were_tried_algorithms_keep_their_ratio() -> None:
    measured = facts(STATIC + 10_000)
    measured["layers"] = [_layer(8), _layer(16)]
    measured["layers"][0]["trials"][1]["seconds"] = 0.0079  # of 8 ms as built
    measured["layers"][1]["trials"][1]["seconds"] = 0.0159
    measured["layers"][0]["trials"][0]["seconds"] = 0.0080  # a line through these two says 0.2 ms for none
    measured["layers"][1]["trials"][0]["seconds"] = 0.0158
    rows = {row.samples: row for row in advise_mini_batch(measured).sizes}
    assert rows[1].algorithms == rows[8].algorithms == ("as built",)


def test_what_the_spec_says_stays_where_the_advice_is_hardly_better() -> None:
    measured = facts(10_000)
    measured["sizes"][2]["seconds"] = measured["sizes"][3]["seconds"] / 2 * 1.01  # 4 samples, beside 8
    batch = advise_mini_batch(measured)
    assert batch.best is not None
    assert batch.best.samples == 8
    assert "micro_batch" not in advise_spec(spec(micro_batch=4), measured, batch, None).fields
    assert advise_spec(spec(micro_batch=2), measured, batch, None).fields["micro_batch"] == 8
    most = _nodes().most_nodes
    nearly = _nodes(efficiency=_nodes().efficiency(most + 1) * 1.01)
    assert nearly.most_nodes == most
    kept = advise_spec(spec(global_batch=64, max_nodes=most + 1), None, None, nearly)
    assert "max_nodes" not in kept.fields
    changed = advise_spec(spec(global_batch=64, max_nodes=2 * most), None, None, nearly)
    assert changed.fields["max_nodes"] == most


def test_recomputation_makes_a_larger_mini_batch_fit() -> None:
    batch = advise_mini_batch(facts(STATIC + 150 * 8))
    sixteen = next(row for row in batch.sizes if row.samples == 16)
    assert sixteen.samples_per_s is None
    assert sixteen.algorithms == ("recompute",)
    assert sixteen.left_bytes == 150 * 8 - 50 * 16


def test_a_mini_batch_that_does_not_divide_the_share_wastes_part_of_the_last() -> None:
    assert step_rate(16, 5, 1.0) == 4.0


def test_a_model_that_fits_nowhere_is_told_what_would_make_it_fit() -> None:
    measured = facts(1600, sizes=())
    batch = advise_mini_batch(measured)
    assert batch.best is None
    ways = "\n".join(what_would_fit(measured, batch))
    assert "3.08 KiB of memory for each rank: then it computes 1 sample at once" in ways
    assert "sharded}` on 3 ranks or more" in ways  # 3000 / (1600 - 150)
    assert "{tensor: {shards: 3}}`: each holds 1/3" in ways
    assert "2 stages or more" in ways  # 3150 / 1600
    assert "{cube: 2}}` on 8 ranks or more" in ways  # (3000 + 2 x 150) / 8
    assert "What would make it fit" in "\n".join(mini_batch_lines(measured, batch, []))
    assert what_would_fit(facts(10_000), advise_mini_batch(facts(10_000))) == []


def test_shards_that_are_told_are_enough_and_one_fewer_is_not() -> None:
    for limit in range(200, 3149, 37):
        measured = facts(limit, sizes=())
        ways = [way for way in what_would_fit(measured, advise_mini_batch(measured)) if "sharded" in way]
        shards = int(ways[0].split(" on ")[1].split()[0])
        assert STATIC / shards + 150 <= limit < STATIC / (shards - 1) + 150


def _nodes(**changes: Any) -> Any:
    given = {"global_batch": 64, "micro_batch": 16, "ranks_per_node": 1, "max_nodes": 4, "efficiency": 0.8}
    return nodes_from_passes(PassTime(0.0, 1e-2), 0.01, 10**6, LINK, **given | changes)


def test_the_number_of_nodes_counts_an_exchange_that_grows_with_them() -> None:
    nodes = _nodes()
    assert nodes.costs.compute_s == pytest.approx(0.64)
    exchange_s = 2 * 3 * (1e-4 + 10**6 / 4 / 1e9)
    assert nodes.costs.overhead_s == pytest.approx(0.01 + exchange_s)
    step_s = [0.64 / n + 0.01 + 2 * (n - 1) * (1e-4 + 10**6 / n / 1e9) for n in range(1, 65)]
    expected = max(n for n in range(1, 65) if step_s[0] / (n * step_s[n - 1]) >= 0.8)
    assert nodes.most_nodes == expected
    assert nodes.efficiency(expected) >= 0.8 > nodes.efficiency(expected + 1)
    text = "\n".join(nodes_lines(nodes))
    assert "R  = T_O / (T_C + T_O)" in text
    assert "R' = T_O / T_C" in text


def test_a_trainers_own_rates_give_its_compute_and_overhead() -> None:
    rates = [(n, 64 / (0.64 / n + 0.04), 60.0) for n in (1, 2, 4)]
    nodes = nodes_from_rates(rates, global_batch=64, max_nodes=4, efficiency=0.8)
    assert nodes.costs.compute_s == pytest.approx(0.64, rel=0.02)
    assert nodes.costs.overhead_s == pytest.approx(0.04, rel=0.1)
    for n, rate, _ in rates:
        assert nodes.rate(n) == pytest.approx(rate, rel=0.02)
    assert "measured" in "\n".join(nodes_lines(nodes))


def test_layouts_give_the_number_of_nodes_of_a_model_in_stages() -> None:
    rates = [(n, 64 / (0.64 / n + 0.16)) for n in (1, 2, 4)]
    nodes = nodes_from_layouts(rates, global_batch=64, max_nodes=4, efficiency=0.8)
    assert nodes.most_nodes == 2  # 0.8 / (n (0.64 / n + 0.16)): 0.83 at 2, 0.71 at 3
    assert nodes.largest == 4
    assert "layouts" in nodes.source


def test_a_sharded_trainer_is_given_the_nodes_that_hold_its_parts() -> None:
    measured = facts(1600, sizes=())
    sharded = spec(parallel={"data": "sharded"}, max_nodes=2)
    advice = advise_spec(sharded, measured, advise_mini_batch(measured), None)
    assert (advice.fields["min_nodes"], advice.fields["max_nodes"]) == (3, 3)  # 3000 / (1600 - 150)
    assert advise_spec(spec(), measured, advise_mini_batch(measured), None).fields == {}


def test_no_other_number_of_nodes_is_advised_than_the_sizes_allow() -> None:
    most = _nodes().most_nodes
    assert most > 2
    sized = spec(global_batch=64, sizes=[1, 2, most + 1, 64], max_nodes=64)
    assert advise_spec(sized, None, None, _nodes()).fields["max_nodes"] == 2
    measured = facts(1600, sizes=())  # three ranks hold the state
    sharded = {"parallel": {"data": "sharded"}, "max_nodes": 2}
    advice = advise_spec(spec(sizes=[1, 2, 4], **sharded), measured, advise_mini_batch(measured), None)
    assert (advice.fields["min_nodes"], advice.fields["max_nodes"]) == (4, 4)
    none = advise_spec(spec(sizes=[1, 2], **sharded), measured, advise_mini_batch(measured), None)
    assert none.fields == {}
    told = "sizes: none of them has the 3 ranks that hold the model's state in parts that fit"
    assert none.remarks[-1] == told


def test_the_layout_is_told_as_what_a_replica_consists_of() -> None:
    alike = {"nodes": 4, "samples_per_s": 10.0, "fits": True, "micro_batch": 1}
    stages = {"replicas": 2, "stages": 2, "schedule": "1f1b", "recompute": True, **alike}
    grid = {"replicas": 1, "grid": "square of 2", **alike}
    whole = {"replicas": 4, "grid": "none", **alike}
    split = spec(parallel={"tensor": {"square": 2}})
    told = []
    for layout in (stages, grid, whole):
        measured = facts(10_000, layouts=[layout])
        advice = advise_spec(split, measured, advise_mini_batch(measured), None)
        assert (advice.mini_batch, "micro_batch" in advice.fields) == (None, False)
        told.append(advice.layout)
    assert told == [
        "2 replicas of 2 stages, schedule 1f1b, micro-batches of 1 sample, on 4 nodes, layers computed again for "
        "the backward pass",
        "1 replica, each a square of 2, micro-batches of 1 sample, on 4 nodes",
        "replicated: each rank has the whole model, micro-batches of 1 sample, on 4 nodes",
    ]


def test_a_large_gradient_is_said_not_to_hide() -> None:
    small, large = exchange_advice(10**6, 6, 6.0, LINK), exchange_advice(10**9, 6, 6.0, LINK)
    assert small.hidden
    assert not large.hidden
    assert large.servers == 12  # 2 x 1e9 bytes x 6 workers / (1e9 bytes/s x 1 s)
    assert small.grid == (2, 3)
    assert small.all_reduce == "torus"
    assert exchange_advice(10**6, 5, 6.0, LINK).all_reduce == "ring"
    assert "does not hide" in "\n".join(exchange_lines(large))


def test_only_what_differs_is_written() -> None:
    measured = facts(10_000)
    batch = advise_mini_batch(measured)
    advice = advise_spec(spec(), measured, batch, _nodes(global_batch=16))
    assert advice.fields["micro_batch"] == 8
    assert advice.fields["curve"][0][0] == 1
    assert advice.precision == "bfloat16"
    again = advise_spec(spec(**advice.fields), measured, batch, _nodes(global_batch=16))
    assert again.fields == {}
    assert "stay as they are" in "\n".join(choice_lines(again, ""))


def test_a_bound_beyond_half_the_efficiency_is_warned_of() -> None:
    curve = ((1, 100.0), (2, 180.0), (8, 300.0))
    warning = bounds_warning(spec(curve=curve, max_nodes=8))
    assert warning is not None
    assert "38 %" in warning
    assert "up to 4 nodes" in warning  # 220 / 4 = 55 is half of 100 or more, 240 / 5 = 48 not
    assert bounds_warning(spec(curve=curve, max_nodes=4)) is None
    assert bounds_warning(spec(max_nodes=8)) is None


def test_passes_are_fitted_by_a_line() -> None:
    fitted = fit_pass_time([(m, 0.002 + 0.001 * m) for m in (1, 2, 8)])
    assert (fitted.fixed_s, fitted.sample_s) == (pytest.approx(0.002), pytest.approx(0.001))
    assert fit_pass_time([(1, 0.001), (4, 0.02)]).fixed_s == 0.0
    with pytest.raises(ProblemError):
        fit_pass_time([])
