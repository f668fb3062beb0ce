"""A trainer's position in its training between two steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cursor:
    """The steps, epochs and samples that are finished at a step boundary."""

    step: int = 0
    """Finished optimizer steps since the trainer began."""
    epoch: int = 0
    """Finished passes over the data set; the number of the current one, from 0."""
    consumed: int = 0
    """Samples consumed of the current epoch."""

    def after(self, num_samples: int, epoch_size: int) -> Cursor:
        """The cursor after one more step, of `num_samples`, in an epoch of `epoch_size` samples."""
        consumed = self.consumed + num_samples
        if consumed < epoch_size:
            return Cursor(self.step + 1, self.epoch, consumed)
        return Cursor(self.step + 1, self.epoch + 1, 0)
