"""Workload files: what is read, and what each malformed one is told."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_solver.errors import LogError, ProblemError
from oakum_solver.problem import Curve, PlannedTrainer
from oakum_solver.replay.workload import (
    PAPER_RATES,
    PAPER_SAMPLES,
    WorkItem,
    Workload,
    paper_workload,
    read_workload,
)

CURVE = [[1, 5219], [8, 39584], [64, 262723]]
RESNET: dict[str, Any] = {"name": "resnet", "curve": CURVE}


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "trainers.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, *entries: Any) -> Workload:
    return read_workload(write(folder, json.dumps({"trainers": list(entries)})))


def refusal(folder: Path, *entries: Any) -> str:
    """What is said of the last of these trainers, file and number aside."""
    with pytest.raises(LogError) as refused:
        read(folder, *entries)
    begin = f"{folder / 'trainers.json'}, trainer {len(entries)}: "
    assert str(refused.value).startswith(begin)
    return str(refused.value)[len(begin) :]


def test_the_documented_keys_are_read(tmp_path: Path) -> None:
    entry = {
        "name": "resnet", "min_nodes": 2, "max_nodes": 64, "curve": CURVE, "samples": 1.3e8, "submit_s": 60,
        "grow_stall_s": 17.5, "shrink_stall_s": 11, "weight": 2, "priority": -1, "user": "ada", "deadline_s": 3600,
        "sizes": [1, 2, 8, 64], "slots_per_fragment": 4,
    }  # fmt: skip
    curve = Curve(((1, 5219.0), (8, 39584.0), (64, 262723.0)))
    trainer = PlannedTrainer(
        "resnet", curve, 2, 64, (1, 2, 8, 64), 2.0, 17.5, 11.0, startup_s=0.0, priority=-1, user="ada",
        deadline_in_s=3600.0, bundle=4,
    )  # fmt: skip
    assert read(tmp_path, entry) == Workload((WorkItem(trainer, 60.0, 1.3e8),))


def test_what_is_left_out_or_null_has_its_default(tmp_path: Path) -> None:
    trainer = PlannedTrainer(
        "resnet", Curve(((1, 5219.0), (8, 39584.0), (64, 262723.0))), 1, 64, (), 1.0, 18.0, 12.0, startup_s=0.0
    )
    assert read(tmp_path, RESNET) == Workload((WorkItem(trainer, 0.0, None),))
    optional = ("samples", "submit_s", "user", "deadline_s", "weight", "priority", "min_nodes", "max_nodes")
    assert read(tmp_path, RESNET | dict.fromkeys(optional)) == read(tmp_path, RESNET)


def test_the_documentation_s_example_is_read_and_its_fields_are_all_there_are(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "replay.md").read_text(encoding="utf-8")
    (resnet,) = read_workload(write(tmp_path, page.split("```json\n")[1].split("```")[0])).items
    assert (resnet.trainer.id, resnet.trainer.curve.rate(64), resnet.samples) == ("resnet", 262723.0, 1.3e8)
    rows = page.split("| field | default | meaning |")[1].split("\n\n")[0].splitlines()[2:]
    fields = [field for row in rows for field in re.findall(r"`(\w+)`", row.split("|")[1])]
    told = refusal(tmp_path, RESNET | {"?": 0})
    assert told == f"unknown key '?': expected some of {', '.join(sorted(fields))}"


def test_trainers_come_in_order_of_submission_and_then_of_the_file(tmp_path: Path) -> None:
    submits = {"a": 50, "b": 0, "c": 50, "d": 20}
    workload = read(tmp_path, *(RESNET | {"name": name, "submit_s": at} for name, at in submits.items()))
    assert [item.trainer.id for item in workload.items] == ["b", "d", "a", "c"]


@each(
    ("text", "told"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", 'expected an object {"trainers": [...]}'),
        ("{}", 'expected an object {"trainers": [...]}'),
        ('{"trainers": {}}', 'expected an object {"trainers": [...]}'),
        ('{"trainers": null}', 'expected an object {"trainers": [...]}'),
        ("NaN", 'expected an object {"trainers": [...]}'),
        ('{"trainers": []}', "a workload without trainers: expected at least one"),
        (b"\xff\xfe", "'utf-8' codec can't decode"),
        ("[" * 100_000, "recursion"),
        ("9" * 5000, "Exceeds the limit"),
    ],
)
def test_a_document_that_is_no_workload_is_refused_by_its_file_name(
    tmp_path: Path, text: str | bytes, told: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(LogError) as refused:
        read_workload(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert told in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.json", Path("a\0b")):
        with pytest.raises(LogError):
            read_workload(path)


@each("entry", [None, 1, "resnet", [], True])
def test_a_trainer_is_an_object(tmp_path: Path, entry: Any) -> None:
    assert refusal(tmp_path, RESNET, entry) == f"{entry!r}: expected an object"


@each("name", [None, "", 7, ["x"], "two\nlines", "\ud800", False])
def test_a_name_is_a_printable_text(tmp_path: Path, name: Any) -> None:
    assert refusal(tmp_path, {"name": name, "curve": CURVE}).endswith("text")
    if name is not None:
        assert refusal(tmp_path, RESNET | {"user": name}) == f"user is {name!r}: expected a printable text"


def test_two_trainers_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"trainers\.json: trainer resnet is in the workload twice"):
        read(tmp_path, RESNET, RESNET | {"name": "vgg"}, RESNET | {"submit_s": 9})


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    told = refusal(tmp_path, RESNET | {"max_node": 3})
    assert told.startswith("unknown key 'max_node': expected some of curve, deadline_s, grow_stall_s, max_nodes,")


NUMBERS = (
    "min_nodes", "max_nodes", "samples", "submit_s", "grow_stall_s", "shrink_stall_s", "weight", "priority",
    "deadline_s",
)  # fmt: skip
NO_NUMBERS = ("5", "", True, [], {}, math.nan, math.inf, -math.inf, 10**400, -(10**400), 1e16, 1e-16, 5e-324)


@each("key", NUMBERS)
def test_a_number_is_finite_and_no_text(tmp_path: Path, key: str) -> None:
    for value in NO_NUMBERS:
        told = refusal(tmp_path, RESNET, RESNET | {key: value})
        assert told == f"{key} is {value!r}: expected a number, 0 or of a size between 1e-15 and 1e+15"


@each("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_of_json_are_refused(tmp_path: Path, number: str) -> None:
    path = write(tmp_path, f'{{"trainers": [{{"name": "x", "curve": [[1, {number}]]}}]}}')
    with pytest.raises(LogError, match=r"trainers\.json, trainer 1: curve point \[1, -?(nan|inf)\]: expected"):
        read_workload(path)


@each(
    ("changes", "told"),
    [
        ({"min_nodes": 5, "max_nodes": 4}, "trainer resnet: min_nodes 5 and max_nodes 4: expected 1 <= min_nodes"),
        ({"min_nodes": 65}, "trainer resnet: min_nodes 65 and max_nodes 64: expected 1 <= min_nodes"),
        ({"min_nodes": 0}, "trainer resnet: min_nodes 0 and max_nodes 64: expected 1 <= min_nodes"),
        ({"max_nodes": -1}, "trainer resnet: min_nodes 1 and max_nodes -1: expected 1 <= min_nodes"),
        ({"min_nodes": 1.5}, "min_nodes is 1.5: expected a whole number"),
        ({"sizes": 4}, "sizes is 4: expected a list of whole numbers of nodes, such as [1, 2, 4, 8]"),
        ({"sizes": [4, 2]}, "trainer resnet: min_nodes 4 and max_nodes 2: expected 1 <= min_nodes"),
        ({"sizes": [1, 3, 2, 4]}, "trainer resnet: sizes 1, 3, 2, 4: expected them in rising order, each once"),
        ({"sizes": [1, 2], "min_nodes": 3, "max_nodes": 4}, "trainer resnet: min_nodes is 3: expected one of its"),
        ({"max_nodes": 7.25}, "max_nodes is 7.25: expected a whole number"),
        ({"priority": 0.5}, "priority is 0.5: expected a whole number"),
        ({"samples": 0}, "samples is 0.0: expected a number above 0, or null for an endless trainer"),
        ({"samples": -3}, "samples is -3.0: expected a number above 0, or null for an endless trainer"),
        ({"submit_s": -1}, "submit_s is -1.0: expected seconds >= 0 since the log's start"),
        ({"weight": -1}, "trainer resnet: weight is -1.0: expected a finite number >= 0"),
        ({"grow_stall_s": -1}, "trainer resnet: grow_stall_s is -1.0: expected a finite number >= 0"),
        ({"shrink_stall_s": -1}, "trainer resnet: shrink_stall_s is -1.0: expected a finite number >= 0"),
    ],
)
def test_a_number_out_of_its_bounds_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    assert refusal(tmp_path, RESNET | {"name": "vgg"}, RESNET | changes).startswith(told)


@each(
    ("curve", "told"),
    [
        (None, "no curve: expected [[nodes, samples_per_s], ...]"),
        ([], "no curve: expected [[nodes, samples_per_s], ...]"),
        ({"1": 5}, "no curve: expected [[nodes, samples_per_s], ...]"),
        ("1,5", "no curve: expected [[nodes, samples_per_s], ...]"),
        ([1, 5], "curve point 1: expected [nodes, samples_per_s]"),
        ([[1]], "curve point [1]: expected [nodes, samples_per_s]"),
        ([[1, 2, 3]], "curve point [1, 2, 3]: expected [nodes, samples_per_s]"),
        ([["1", 2]], "curve point ['1', 2]: expected [nodes, samples_per_s]"),
        ([[1, None]], "curve point [1, None]: expected [nodes, samples_per_s]"),
        ([[True, 2]], "curve point [True, 2]: expected [nodes, samples_per_s]"),
        ([[10**300, 2]], f"curve point [{10**300}, 2]: expected [nodes, samples_per_s]"),
        ([[1, 1e308]], "curve point [1, 1e+308]: expected [nodes, samples_per_s]"),
        ([[1.5, 2]], "curve point [1.5, 2]: expected a whole number of nodes"),
        ([[0, 0]], "curve point (0, 0.0): expected nodes >= 1 and a finite rate >= 0"),
        ([[-1, 5]], "curve point (-1, 5.0): expected nodes >= 1 and a finite rate >= 0"),
        ([[1, -5]], "curve point (1, -5.0): expected nodes >= 1 and a finite rate >= 0"),
        ([[1, 5], [2, 4]], "curve falls from (1, 5.0) to (2, 4.0): expected it to rise"),
        ([[2, 5], [1, 4]], "curve falls from (2, 5.0) to (1, 4.0): expected it to rise"),
        ([[2, 5], [2, 5]], "curve falls from (2, 5.0) to (2, 5.0): expected it to rise"),
    ],
)
def test_a_curve_rises_through_pairs_of_numbers(tmp_path: Path, curve: Any, told: str) -> None:
    assert refusal(tmp_path, {"name": "x", "curve": curve}).startswith(told)


def test_the_paper_workload_takes_the_published_tables_in_turn() -> None:
    workload = paper_workload(9)
    names = [item.trainer.id for item in workload.items]
    assert names == [*(f"{network}-1" for network in PAPER_RATES), "AlexNet-2", "VGG16-2"]
    stalls = [(item.trainer.grow_stall_s, item.trainer.shrink_stall_s) for item in workload.items]
    assert stalls[:4] == [(17.0, 11.0), (18.0, 12.0), (19.0, 13.0), (17.0, 11.0)]
    alexnet = workload.items[0]
    assert (alexnet.trainer.curve.rate(1), alexnet.trainer.curve.rate(64)) == (7115.3, 202135.4)
    assert (alexnet.trainer.min_nodes, alexnet.trainer.max_nodes, alexnet.submit_s) == (1, 64, 0.0)
    assert {item.samples for item in workload.items} == {None}
    assert {item.samples for item in paper_workload(9, endless=False).items} == {PAPER_SAMPLES}


@pytest.mark.parametrize("trainers", [0, -1])
def test_a_paper_workload_has_a_trainer(trainers: int) -> None:
    with pytest.raises(ProblemError, match="a workload without trainers"):
        paper_workload(trainers)
