"""The worker's exceptions.

WorkerError
├── SpecError            a trainer spec that cannot be accepted
├── TaskError            the user's entrypoint cannot be imported, raises, or returns no usable task
├── CheckpointError      a durable checkpoint cannot be written or read
│   └── CorruptCheckpointError    its content does not match its manifest
├── ScheduleError        a pipeline's schedule or stages cannot be made so, or a schedule contradicts itself
├── LaunchError          the scheduler does not take a fragment's job
└── GroupError           a generation's process group cannot be formed or has broken
"""


class WorkerError(Exception):
    """Something the worker was asked to do cannot be done."""


class SpecError(WorkerError):
    """The trainer spec cannot be accepted."""


class TaskError(WorkerError):
    """The entrypoint cannot be imported, raises, or does not return a usable task."""


class CheckpointError(WorkerError):
    """A durable checkpoint cannot be written or read."""


class CorruptCheckpointError(CheckpointError):
    """The checkpoint's content does not match its manifest."""


class ScheduleError(WorkerError):
    """A pipeline cannot be cut or scheduled so, or a schedule contradicts itself."""


class LaunchError(WorkerError):
    """The scheduler does not take a fragment's job; the message is its own."""


class GroupError(WorkerError):
    """The generation's process group cannot be formed, or one of its members is gone."""


class TrainingWarning(UserWarning):
    """Something that the user should know and that does not keep the trainer from training."""
