"""The worker's exceptions.

WorkerError
├── SpecError            a trainer spec that cannot be accepted
├── TaskError            the user's entrypoint cannot be imported, raises, or returns no usable task
│   └── SessionError     a script uses its session in a way that cannot train
├── DivergedError        training's loss, gradients or weights have become infinite or NaN, and stayed so
├── CheckpointError      a durable checkpoint cannot be written or read
│   └── CorruptCheckpointError    a checkpoint's content does not match its manifest
├── ScheduleError        a pipeline cannot have the stages or schedule asked for, or a schedule contradicts itself
├── ConfigError          a fragment's config asks for what this version of the worker does not know
├── LaunchError          a fragment cannot be started in its user's account
├── NoLoopsError         the fused loops of recurrent layers cannot be compiled or loaded here
├── ForkError            no process can be forked from the fork server
└── GroupError           a generation's process group cannot be formed or has broken
    └── SharesMissingError    some ranks gave a step no samples
"""

import warnings
from collections.abc import Mapping


class WorkerError(Exception):
    """Something the worker was asked to do cannot be done."""


class SpecError(WorkerError):
    """The trainer spec cannot be accepted."""


class TaskError(WorkerError):
    """The entrypoint cannot be imported, raises, or does not return a usable task."""


class SessionError(TaskError):
    """A script uses its session in a way that cannot train: the message says what to change."""


class DivergedError(WorkerError):
    """Training has diverged: the message says what was not finite first, and since when."""


class CheckpointError(WorkerError):
    """A durable checkpoint cannot be written or read."""


class CorruptCheckpointError(CheckpointError):
    """The checkpoint's content does not match its manifest."""


class ScheduleError(WorkerError):
    """A pipeline cannot have the stages or the schedule asked for, or a schedule contradicts itself."""


class ConfigError(WorkerError):
    """A fragment's config asks for what this version of the worker does not know."""


class LaunchError(WorkerError):
    """A fragment cannot be started in its user's account: the message says what could not be run."""


class NoLoopsError(WorkerError):
    """The fused loops of recurrent layers cannot be compiled or loaded here: the message says what to do."""


class ForkError(WorkerError):
    """The fork server is gone or does not answer; nothing was started."""


class GroupError(WorkerError):
    """The generation's process group cannot be formed, or one of its members is gone."""


class SharesMissingError(GroupError):
    """The ranks' shares do not add up to the step's global batch. Raised on every rank of the step."""

    def __init__(self, text: str, num_samples: int) -> None:
        """`num_samples` is the number of samples that the ranks took together."""
        super().__init__(text)
        self.num_samples = num_samples


class TrainingWarning(UserWarning):
    """Something that the user should know and that does not keep the trainer from training."""


def let_warnings_through() -> None:
    """Show `TrainingWarning` even where a filter silences all warnings, as many scripts set one when they
    begin. A filter that names this class stays in force."""
    for action, message, category, module, _ in warnings.filters:
        if message is None and module is None and issubclass(TrainingWarning, category):
            if action == "ignore" and category is not TrainingWarning:
                warnings.filterwarnings("default", category=TrainingWarning)
            return


def warn_of_training(text: str, stacklevel: int = 1) -> None:
    """Issue `text` as a `TrainingWarning`, also where a filter has come to silence all warnings. `stacklevel`
    counts from the caller, as that of `warnings.warn` does."""
    let_warnings_through()
    warnings.warn(text, TrainingWarning, stacklevel=stacklevel + 1)


def reason_of(error: Exception) -> str:
    """What went wrong in words: of an operating system's error its reason alone, without number and path."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8 text"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def fault_of(item: Mapping[str, object]) -> str:
    """What is wrong with a value, of one item of pydantic's `ValidationError.errors()`: its message, without the
    name of the Python exception that some begin with."""
    return str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
