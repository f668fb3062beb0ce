"""Makes the `Failure` that the service and the user read of an error that ends a rank's training."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

import torch

from oakum_worker.errors import DivergedError, TaskError
from oakum_worker.memory_advice import memory_advice
from oakum_worker.protocol import Failure
from oakum_worker.spec import TrainerSpec
from oakum_worker.task_checks import lacks_memory

_LONGEST_TRACEBACK = 8000
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_NOT_THE_USERS = tuple(
    str(Path(folder)) + "/"
    for folder in (Path(__file__).parents[1], Path(torch.__file__).parent, sysconfig.get_path("stdlib"))
)


def failure_of(error: Exception, step: int | None, spec: TrainerSpec) -> Failure:
    """The `Failure` to report for an error that was raised after `step` finished steps; a `step` of None stands
    for an error before training."""
    if isinstance(error, DivergedError):
        return Failure(stage="diverged", step=step or 0, message=str(error))
    text = str(error) if isinstance(error, TaskError) else f"{type(error).__name__}: {error}"
    short = lacks_memory(error)
    if short:
        when = "while it was built" if step is None else f"in step {step + 1}"
        lines = text.strip().splitlines()
        text = f"out of memory {when}: {lines[0] if lines else text}. {memory_advice(spec)}"
    return Failure(
        stage="load" if step is None else "train",
        step=step or 0,
        message=text,
        identity=_identity(error, short=short),
        traceback="".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:],
    )


def _identity(error: BaseException, *, short: bool) -> str:
    """The `Failure.identity` of the error's root cause.

    Leaves out addresses, and a message about lacking memory, because their numbers differ each time.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    message = "" if short else _ADDRESS.sub("0x", str(error))
    return f"{type(error).__qualname__} at {_line(error)}: {message}"


def _line(error: BaseException) -> str:
    """File and line of the user's code that was innermost when the error was raised; of any code where none was
    the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return next((f"{frame.filename}:{frame.lineno}" for frame in reversed(own or frames)), "nowhere")
