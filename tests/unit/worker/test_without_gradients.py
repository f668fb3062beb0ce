"""Trainers whose strategy takes no gradients are tried like others, and are not profiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cells import each
from counting_rounds import NUM_BLOCKS
from oakum_worker.advice.survey import Surveyor
from oakum_worker.errors import SpecError
from oakum_worker.profiling.layout_profile import profile_layouts
from oakum_worker.profiling.micro_batch_profile import profile_micro_batch
from oakum_worker.spec import TrainerSpec
from oakum_worker.trying.trial import try_out


@pytest.fixture
def spec() -> TrainerSpec:
    return TrainerSpec(
        name="rounds",
        entrypoint="counting_rounds:counting_task",
        workdir=str(Path(__file__).parents[2] / "support"),
        global_batch=NUM_BLOCKS,
        epochs=3,
        parallel={"data": "map-reduce"},
    )


def test_a_try_of_them_passes_without_an_estimate_of_their_memory(spec: TrainerSpec) -> None:
    events: list[dict[str, Any]] = []
    assert try_out(spec, events.append), events[-1]["message"]
    [detail] = [one["detail"] for one in events if one.get("check") == "estimating memory" and "detail" in one]
    assert detail.startswith("left out")
    [facts] = [one["facts"] for one in events if one["state"] == "facts"]
    assert facts["memory"] is None


@each(
    "measure",
    [
        profile_micro_batch,
        profile_layouts,
        lambda spec: Surveyor(spec, None, lambda _: None, compiles=False).survey(),
    ],
)
def test_what_is_measured_in_passes_is_refused_by_name(
    spec: TrainerSpec, measure: Callable[[TrainerSpec], object]
) -> None:
    with pytest.raises(SpecError, match=r"rounds has parallel\.data: map-reduce, which trains without gradients"):
        measure(spec)
