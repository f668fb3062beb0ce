"""Every schedule that can be built computes every micro-batch once and ends, whatever its sizes are."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

import oakum_service
import oakum_worker
from cells import each
from oakum_client.cli import profile
from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.chimera import placement
from oakum_worker.parallel.pipeline.operations import COMPUTATIONS, Kind, Schedule
from oakum_worker.parallel.pipeline.schedules import SCHEDULES, ScheduleSize, build, exists
from oakum_worker.parallel.pipeline.validation import validate
from oakum_worker.schedule_table import NAMES, TRAITS, PipelineSchedule


def computations(schedule: Schedule, worker: int) -> str:
    """A worker's computations in short: `F0 B0` for micro-batch 0, after the stage where there are several."""
    several = len(schedule.stages_of(worker)) > 1
    return " ".join(
        f"{operation.stage if several else ''}{operation.kind.value}{','.join(map(str, operation.micro_batches))}"
        for operation in schedule.operations[worker]
        if operation.kind in COMPUTATIONS
    )


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_one_pipe_is_valid_for_any_number_of_micro_batches(name: str) -> None:
    for num_workers in (1, 2, 3, 5):
        for num_micro_batches in range(1, 9):
            validate(build(name, num_workers=num_workers, num_micro_batches=num_micro_batches))


def test_gpipe_runs_all_forwards_first_and_1f1b_as_few_as_there_are_stages_left() -> None:
    gpipe = build("gpipe", num_workers=2, num_micro_batches=3)
    assert [computations(gpipe, worker) for worker in (0, 1)] == ["F0 F1 F2 B0 B1 B2"] * 2
    alternating = build("1f1b", num_workers=2, num_micro_batches=3)
    assert computations(alternating, 0) == "F0 F1 B0 F2 B1 B2"
    assert computations(alternating, 1) == "F0 B0 F1 B1 F2 B2"


def torch_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    for num_workers in (1, 2, 4):
        for stages in (1, 2, 3):
            for num_micro_batches in (1, num_workers, 2 * num_workers, 5 * num_workers):
                sizes = {"num_workers": num_workers, "num_micro_batches": num_micro_batches}
                yield "interleaved", sizes | {"stages_per_worker": stages}
                yield "zero-bubble", sizes | {"stages_per_worker": stages}
                if stages == 2:
                    yield "zero-bubble-v", sizes


def test_what_torch_orders_is_valid_for_few_and_many_micro_batches() -> None:
    cases = list(torch_cases())
    assert len(cases) == 3 * 4 * 7
    for name, sizes in cases:
        validate(build(name, **sizes))


def test_gpipe_and_1f1b_are_as_torch_orders_them() -> None:
    """Not on the last worker: there torch's listing of 1F1B, which it does not run, begins with micro-batch 1."""
    from torch.distributed.pipelining import schedules

    for name, torchs_class in (("gpipe", schedules.ScheduleGPipe), ("1f1b", schedules.Schedule1F1B)):
        for num_workers, num_micro_batches in ((2, 2), (4, 8), (4, 13)):
            stage = SimpleNamespace(is_first=True, is_last=False, has_backward=True, submod=None)
            stage.group_size = stage.num_stages = num_workers
            order = torchs_class(stage, num_micro_batches).pipeline_order
            ours = build(name, num_workers=num_workers, num_micro_batches=num_micro_batches)
            for worker in range(num_workers - 1):
                theirs = [str(action)[1:] for action in order[worker] if action and "REDUCE" not in str(action)]
                assert computations(ours, worker) == " ".join(theirs)


def test_chimera_meets_in_the_middle() -> None:
    """Figure 3 of the paper: four workers, micro-batches 0 and 1 down, 2 and 3 up."""
    schedule = build("chimera", num_workers=4, num_micro_batches=4)
    assert schedule.placement == ((0, 1, 2, 3), (3, 2, 1, 0))
    assert [computations(schedule, worker) for worker in range(4)] == [
        "0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1",
        "1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1",
        "1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3",
        "0F2 0F3 3F0 3B0 3F1 3B1 0B2 0B3",
    ]


def test_pipes_of_chimera_lie_apart_from_each_other() -> None:
    assert placement(8, 4) == (
        (0, 1, 2, 3, 4, 5, 6, 7),
        (7, 6, 5, 4, 3, 2, 1, 0),
        (4, 5, 6, 7, 0, 1, 2, 3),
        (3, 2, 1, 0, 7, 6, 5, 4),
    )
    for num_workers, num_pipes in ((4, 4), (8, 8), (12, 6)):
        for worker in range(num_workers):
            held = build("chimera", num_workers=num_workers, num_micro_batches=16, num_pipes=num_pipes).stages_of(
                worker
            )
            assert len({stage for _, stage in held}) == len(held) == num_pipes


@each("scheme", ["auto", "concatenation", "forward-doubling", "backward-halving"])
def test_chimera_is_valid_for_fewer_and_for_many_more_micro_batches_than_workers(scheme: Any) -> None:
    for num_workers in (2, 4, 6):
        few, many = range(2, 2 * num_workers + 3), (4 * num_workers, 4 * num_workers + 1, 6 * num_workers - 2)
        for num_micro_batches in [*few, *many]:
            if scheme == "backward-halving" and (num_micro_batches % 2 or num_micro_batches < 4):
                continue
            schedule = build(
                "chimera", num_workers=num_workers, num_micro_batches=num_micro_batches, scheme=scheme
            )
            assert schedule.num_micro_batches == num_micro_batches
            validate(schedule)


def test_chimera_with_more_pipes_is_valid() -> None:
    for num_workers, num_pipes in ((4, 4), (6, 6), (8, 4), (8, 8), (12, 4), (12, 6)):
        for num_micro_batches in (num_pipes, num_pipes + 1, num_workers, 2 * num_workers + 1, 5 * num_workers):
            validate(
                build("chimera", num_workers=num_workers, num_micro_batches=num_micro_batches, num_pipes=num_pipes)
            )


def test_every_forward_pass_of_backward_halving_takes_two_halves() -> None:
    schedule = build("chimera", num_workers=4, num_micro_batches=14, scheme="backward-halving")
    forwards = [o for order in schedule.operations for o in order if o.kind is Kind.FORWARD]
    assert {len(operation.micro_batches) for operation in forwards} == {2}


def test_a_doubled_forward_sends_both_micro_batches_in_one_message() -> None:
    schedule = build("chimera", num_workers=4, num_micro_batches=8, scheme="forward-doubling")
    lengths = {kind: set() for kind in (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT)}
    for order in schedule.operations:
        for operation in order:
            if operation.kind in lengths:
                lengths[operation.kind].add(len(operation.micro_batches))
    assert lengths == {Kind.SEND_ACTIVATION: {2}, Kind.SEND_GRADIENT: {1}}


def test_gradients_are_summed_before_the_last_computation_where_a_worker_is_idle_after() -> None:
    """Section 3.2 of the paper: workers 0 and 3 are idle after their first stage is done, 1 and 2 are not."""
    schedule = build("chimera", num_workers=4, num_micro_batches=4)
    kinds = [[o.kind for o in order if o.kind in COMPUTATIONS | {Kind.SYNC}] for order in schedule.operations]
    assert ["".join(order) for order in kinds] == ["FFFBFBSBBS", "FFFFBBBBSS", "FFFFBBBBSS", "FFFBFBSBBS"]


@each(
    ("name", "options", "message"),
    [
        ("dapple", {}, "no schedule 'dapple': choose one of gpipe, 1f1b"),
        ("1f1b", {"num_micro_batches": 0}, "0 micro-batches on 4 workers"),
        ("1f1b", {"stages_per_worker": 2}, "1f1b has one stage of a pipe on each worker, not 2"),
        ("chimera", {"num_workers": 3}, "even number of workers, at least 2, not 3"),
        ("chimera", {"num_pipes": 3}, "cannot have 3 pipes on 4 workers"),
        ("chimera", {"num_workers": 8, "num_pipes": 6}, "cannot have 6 pipes on 8 workers"),
        ("chimera", {"num_micro_batches": 1}, "1 micro-batches are too few for 2 pipes"),
        ("chimera", {"scheme": "doubling"}, "no scheme 'doubling'"),
        ("chimera", {"scheme": "forward-doubling", "num_pipes": 4}, "forward-doubling needs 2 pipes, not 4"),
        (
            "chimera",
            {"scheme": "backward-halving", "num_micro_batches": 7},
            "an even number of halves, at least 4, not 7",
        ),
        ("interleaved", {"num_micro_batches": 9}, "torch has no schedule 'interleaved' of 9 micro-batches"),
    ],
)
def test_what_does_not_exist_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        build(name, **({"num_workers": 4, "num_micro_batches": 8} | options))


def test_every_schedule_can_be_built_and_asked_for() -> None:
    assert {*SCHEDULES} == {*TRAITS} == {*NAMES}
    assert {*get_args(get_type_hints(profile.pipeline)["schedule"])} == {*NAMES}


def names_told(path: Path) -> set[str]:
    """The names in a file's code that a spec's `schedule` may have, as strings or as options such as `schedule:
    chimera`; not those in examples and messages."""
    texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    told = {text.rpartition(": ")[2] for text in texts if isinstance(text, str)}
    return told & ({*get_args(PipelineSchedule)} - {"auto"})


def test_a_schedules_name_stands_in_the_table_alone() -> None:
    """In the worker and the service: what reads the table gets a new schedule without being changed."""
    files = [path for package in (oakum_worker, oakum_service) for path in Path(package.__path__[0]).rglob("*.py")]
    assert {path.name for path in files if names_told(path)} == {"schedule_table.py"}


@each("name", NAMES)
def test_a_record_places_stages_where_its_schedules_have_them(name: str) -> None:
    kind, num_pipes = SCHEDULES[name], 2 if TRAITS[name].has_pipes else 1
    size = ScheduleSize(4, 8, kind.traits.stages_per_worker, num_pipes)
    assert kind.placement(size) == tuple(map(tuple, kind.build(kind.traits, size).placement))
    for number in range(1, 12):
        if exists(name, 4, number):
            assert build(name, num_workers=4, num_micro_batches=number).num_micro_batches == number
        else:
            with pytest.raises(ScheduleError):
                build(name, num_workers=4, num_micro_batches=number)
