"""What is told of an error that ends a rank's training, and which errors are alike."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import torch

from cells import each
from oakum_worker.errors import DivergedError, TaskError
from oakum_worker.rank.failures import failure_of
from oakum_worker.task_checks import lacks_memory
from training_ranks import build_spec
from waiting import DEADLINE_S

SPEC = build_spec(micro_batch=4)
LIMITED = """
import json, resource, sys
import torch
from oakum_worker.rank.failures import failure_of
from training_ranks import build_spec
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
told = []
for take in (lambda: bytearray(64 << 30), lambda: torch.ones(16 << 30)):
    try:
        take()
    except Exception as error:
        told.append(failure_of(error, 49, build_spec(micro_batch=4)).model_dump())
print(json.dumps(told))
"""


def raised(cause: Callable[[], object]) -> Exception:
    try:
        cause()
    except Exception as error:
        return error
    raise LookupError("nothing was raised")


def disagree(text: str = "points and labels disagree") -> None:
    raise ValueError(text)


def elsewhere() -> None:
    raise ValueError("points and labels disagree")


def test_an_error_of_the_tasks_is_told_with_its_step_its_line_and_its_traceback() -> None:
    told = failure_of(raised(disagree), 49, SPEC)
    assert (told.stage, told.step, told.message) == ("train", 49, "ValueError: points and labels disagree")
    assert told.identity.startswith(f"ValueError at {__file__}:")
    assert told.traceback.rstrip().endswith("ValueError: points and labels disagree")


def test_before_there_is_anything_to_train_it_is_of_loading() -> None:
    assert failure_of(TaskError("no such module"), None, SPEC).stage == "load"


def test_divergence_is_told_as_what_it_is() -> None:
    told = failure_of(DivergedError("the loss was nan"), 34, SPEC)
    assert (told.stage, told.step, told.message, told.identity) == ("diverged", 34, "the loss was nan", "")


@each(
    ("other", "alike"),
    [
        (lambda: disagree(), True),
        (lambda: disagree("<Points object at 0x7f01>"), False),
        (elsewhere, False),
        (lambda: int("x"), False),
    ],
    ids=["same", "message", "line", "type"],
)
def test_errors_are_alike_by_type_message_and_line(other: Callable[[], object], alike: bool) -> None:
    first, second = (failure_of(raised(cause), 1, SPEC).identity for cause in (disagree, other))
    assert (first == second) is alike


def test_addresses_make_no_difference_nor_does_what_our_code_has_wrapped_around_an_error() -> None:
    def wrapped(address: str) -> Exception:
        def wrap() -> None:
            try:
                disagree(f"<Points object at {address}> has no labels")
            except ValueError as error:
                raise TaskError(f"the data set raised {error}") from error

        return raised(wrap)

    assert failure_of(wrapped("0x7f01"), 1, SPEC).identity == failure_of(wrapped("0x7fAB"), 1, SPEC).identity


def test_lack_of_memory_says_what_to_change_and_is_alike_however_much_was_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=DEADLINE_S, check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    host, tensor = json.loads(done.stdout)
    for told in (host, tensor):
        assert told["message"].startswith("out of memory in step 50: "), told
        assert "lower micro_batch (now 4; `oakum profile micro-batch` finds what fits)" in told["message"]
        assert told["identity"].endswith(": ")
    assert "MemoryError" in host["message"]
    assert "can't allocate memory" in tensor["message"]


def test_a_device_without_memory_is_recognised_also_behind_another_error() -> None:
    error = TaskError("the model failed")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    assert lacks_memory(error)
    assert not lacks_memory(ValueError("out of memory"))
