"""What rank 0 tells of training's progress, and how often."""

from __future__ import annotations

import time

from oakum_worker.channel import NewsWriter
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.protocol import Generation, Progress
from oakum_worker.trainer import TrainingLoop

_INTERVAL_S = 0.5


class ProgressReporter:
    """Gathers the losses and samples of steps and reports them about twice a second."""

    def __init__(self, news: NewsWriter, loop: TrainingLoop, checkpoints: DurableCheckpoints) -> None:
        self._news = news
        self._loop = loop
        self._checkpoints = checkpoints
        self.metrics: dict[str, float] = {}
        self._generation = Generation(number=0, members=())
        self._last_loss: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._since_s = time.monotonic()
        self._losses: list[float] = []
        self._samples = 0

    def enter(self, generation: Generation) -> None:
        """Begin reporting for a generation. Time lost before it is not part of its throughput."""
        self._generation = generation
        self._reset()

    def step(self, loss: float, samples: int) -> None:
        """Count one finished step of the global batch; report if it is time to."""
        self._losses.append(loss)
        self._last_loss = loss
        self._samples += samples
        if time.monotonic() - self._since_s >= _INTERVAL_S:
            self.flush()

    def flush(self, *, final: bool = False) -> None:
        """Report now; the `final` report carries the last step's own loss, to be compared with another run's."""
        elapsed_s = time.monotonic() - self._since_s
        self._news.send(
            progress=Progress(
                generation=self._generation.number,
                nodes=len(self._generation.members),
                step=self._loop.step_count,
                total_steps=self._loop.total_steps,
                epoch=self._loop.epoch,
                samples=self._loop.samples,
                total_samples=self._loop.total_samples,
                global_batch=self._loop.global_batch,
                learning_rate=self._learning_rate(),
                loss=self._last_loss if final or not self._losses else sum(self._losses) / len(self._losses),
                samples_per_s=self._samples / elapsed_s if self._losses else None,
                checkpoint_step=self._checkpoints.newest_step,
                predicted_curve=self._loop.predicted_curve,
                metrics=self.metrics,
                final=final,
            )
        )
        self._reset()

    def _learning_rate(self) -> float | None:
        """Of the first parameter group; optimizers without one have nothing to tell."""
        rate = self._loop.task.optimizer.param_groups[0].get("lr")
        return None if rate is None else float(rate)
