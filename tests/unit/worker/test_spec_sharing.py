"""What a spec says of how its trainer shares the nodes: curves by type, priority, deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cells import each
from oakum_worker.spec import TrainerSpec, explain, read_spec

REQUIRED = {"name": "digits", "entrypoint": "tasks.digits:task", "global_batch": 96, "epochs": 2}
YAML = "name: digits\nentrypoint: tasks.digits:task\nglobal_batch: 96\nepochs: 2\n"
EVENING = datetime(2027, 3, 31, 16, 0, tzinfo=UTC)
NO_MOMENT = "is not a point in time: expected ISO 8601 with a time zone, such as 2027-03-31T18:00:00+02:00"


def spec(**fields: Any) -> TrainerSpec:
    return TrainerSpec.model_validate(REQUIRED | fields)


def faults(**fields: Any) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        spec(**fields)
    return explain(refused.value)


def test_by_default_a_trainer_claims_nothing() -> None:
    plain = spec()
    assert (plain.priority, plain.deadline, plain.curves_by_type, plain.mixes_types) == (0, None, {}, False)


@each("text", ["2027-03-31T18:00:00+02:00", "2027-03-31T16:00:00Z", "2027-03-31 16:00+00:00", "20270331T160000Z"])
def test_a_deadline_is_a_point_in_time(text: str) -> None:
    assert spec(deadline=text).deadline == EVENING


@pytest.mark.parametrize(
    "text", ["2027-03-31T18:00:00+02:00", "'2027-03-31T18:00:00+02:00'", "2027-03-31 16:00:00Z"]
)
def test_a_deadline_may_be_written_as_yaml_has_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(f"{YAML}deadline: {text}\n")
    assert read_spec(file).deadline == EVENING


@each("value", ["2027-03-31T18:00:00", "2027-03-31", "tomorrow", "", 1_800_000_000, "1800000000", True, [], {}])
def test_what_names_no_point_in_time_is_refused(value: Any) -> None:
    assert faults(deadline=value) == [f"deadline: {str(value)!r} {NO_MOMENT}"]


def test_a_deadline_before_all_time_is_refused() -> None:
    assert faults(deadline="0001-01-01T00:00:00+14:00") == [f"deadline: '0001-01-01T00:00:00+14:00' {NO_MOMENT}"]


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), st.integers(-1439, 1439))
def test_a_deadline_stays_the_same_moment_on_its_way_through_json(naive: datetime, minutes: int) -> None:
    moment = naive.replace(tzinfo=UTC)
    offset = timedelta(minutes=minutes)
    written = (moment + offset).replace(tzinfo=None).isoformat() + _suffix(offset)
    first = spec(deadline=written)
    assert first.deadline == moment
    assert TrainerSpec.model_validate(first.model_dump(mode="json")) == first
    assert TrainerSpec.model_validate_json(first.model_dump_json()) == first


def _suffix(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


@pytest.mark.parametrize("priority", [-100, 100])
def test_a_priority_lies_between_bounds(priority: int) -> None:
    assert spec(priority=priority).priority == priority
    assert faults(priority=2 * priority)[0].startswith("priority: Input should be ")
    assert faults(priority=0.5)[0].startswith("priority: Input should be a valid integer")


def test_a_curve_for_each_type_of_nodes() -> None:
    both = spec(curves_by_type={"gpu:a100": [[1, 90], [2, 170]], "cpu": [[1, 10]]}, mixes_types=True)
    assert both.curves_by_type == {"gpu:a100": ((1, 90.0), (2, 170.0)), "cpu": ((1, 10.0),)}
    assert TrainerSpec.model_validate(both.model_dump(mode="json")) == both


@each(
    ("fields", "line"),
    [
        ({"curves_by_type": {"gpu": []}}, "curves_by_type.gpu: Value should have at least 1 item"),
        ({"curves_by_type": {"gpu": [[2, 9], [1, 10]]}}, "curves_by_type.gpu: 1 nodes follow 2: list the points"),
        ({"curves_by_type": {"gpu": [[1, 9], [2, 9]]}}, "curves_by_type.gpu: 9 samples/s at 2 nodes is not more"),
        ({"curves_by_type": {"gpu": [[1, 0]]}}, "curves_by_type.gpu: the point [1, 0.0] is not usable"),
        ({"curves_by_type": {"a b": [[1, 9]]}}, "curves_by_type.a b.[key]: 'a b' is not a node type"),
        ({"curves_by_type": {"": [[1, 9]]}}, "curves_by_type..[key]: '' is not a node type"),
        ({"curves_by_type": {"x" * 64: [[1, 9]]}}, f"curves_by_type.{'x' * 64}.[key]: '{'x' * 64}' is not a node"),
        (
            {"curves_by_type": {"gpu": [[1, 9]]}, "curve": [[1, 9]]},
            "spec: curve and curves_by_type are both given",
        ),
        ({"mixes_types": True}, "spec: mixes_types says nothing without curves_by_type"),
    ],
)
def test_curves_by_type_that_make_no_sense_are_refused(fields: dict[str, Any], line: str) -> None:
    (fault,) = faults(**fields)
    assert fault.startswith(line)
