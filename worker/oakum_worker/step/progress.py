"""How far training has come, of how much."""

from __future__ import annotations

from collections.abc import Callable

from oakum_worker.step.batch_sizes import BatchSizes
from oakum_worker.step.live_state import LiveState


class Progress:
    """The finished part of the training and the whole of it, in steps, epochs and samples."""

    def __init__(self, state: LiveState, batches: BatchSizes, *, epochs: int, epoch_size: int) -> None:
        """`epoch_size` is the number of samples of an epoch."""
        self._state, self._batches = state, batches
        self._epochs, self._epoch_size = epochs, epoch_size
        self.is_stopped: Callable[[], bool] = lambda: False
        """Returns whether training was ended before its last epoch."""

    @property
    def has_all_epochs(self) -> bool:
        """Whether all epochs are finished."""
        return self.epoch >= self._epochs

    @property
    def epoch(self) -> int:
        """Finished epochs."""
        return self._state.cursor.epoch

    @property
    def samples(self) -> int:
        """Samples consumed since the trainer began."""
        return self.epoch * self._epoch_size + self._state.cursor.consumed

    @property
    def total_samples(self) -> int:
        """Samples of all epochs."""
        return self._epochs * self._epoch_size

    @property
    def global_batch(self) -> int:
        """Samples of the next full global batch; an epoch's last batch may have fewer."""
        return self._batches.at(min(self.epoch, self._epochs - 1))

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all epochs, if an adaptive batch keeps its present size."""
        return self._batches.total_steps(self._state.cursor)
