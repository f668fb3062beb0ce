"""Rank 0's reports of training's progress and pace."""

from __future__ import annotations

import time
from collections import deque

from oakum_worker.channel import NewsWriter
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.protocol import Evaluation, Generation, Pace, TrainingProgress
from oakum_worker.step.training_loop import TrainingLoop

_INTERVAL_S = 0.5
_PACE_S = 2.0
"""Least seconds between two reports of the pace."""
_EVALUATIONS = 16
"""Number of evaluations that a report tells, fewer where they have many metrics: the service refuses long ones."""
_METRICS = 5000


class ProgressReporter:
    """Gathers the losses and samples of this rank's steps, and sends them to the agent about twice a second,
    together with the progress and the newest evaluations."""

    def __init__(self, news: NewsWriter, loop: TrainingLoop, checkpoints: DurableCheckpoints) -> None:
        self._news = news
        self._loop = loop
        self._checkpoints = checkpoints
        self._metrics: dict[str, float] = {}
        self._evaluations: deque[Evaluation] = deque(maxlen=_EVALUATIONS)
        self._generation = Generation(number=0, members=())
        self._rank: int | None = None
        self._paced_s = time.monotonic()
        self._reset()

    def _reset(self) -> None:
        self._since_s = time.monotonic()
        self._losses: list[float] = []
        self._samples = 0

    def enter(self, generation: Generation, rank: int = 0) -> None:
        """Begin reports for a generation in which this process has the number `rank`. Throughput counts from now
        on."""
        self._generation, self._rank = generation, rank
        self._loop.times.begin_window()
        self._reset()

    def new_pace(self) -> Pace | None:
        """The pace if this is rank 0 and 2 s have passed since the last pace; else None.

        Another thread than the training thread calls this, because a step may take minutes.
        """
        now_s = time.monotonic()
        if self._rank != 0 or now_s - self._paced_s < _PACE_S:
            return None
        self._paced_s = now_s
        return self._loop.times.pace()

    def step(self, loss: float, samples: int) -> None:
        """Count one finished step of the global batch; report if 0.5 s have passed since the last report."""
        self._losses.append(loss)
        self._samples += samples
        if time.monotonic() - self._since_s >= _INTERVAL_S:
            self.flush()

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Take the metrics of an evaluation after the last finished step. They are reported with the progress."""
        self._metrics = metrics
        if metrics:
            self._evaluations.append(Evaluation(step=self._loop.step_count, metrics=metrics))
            while sum(len(each.metrics) for each in self._evaluations) > _METRICS:
                self._evaluations.popleft()

    def flush(self, *, final: bool = False) -> None:
        """Report progress now. The loss is the mean since the last report; in the `final` report it is the last
        step's, which can be compared between runs."""
        elapsed_s = time.monotonic() - self._since_s
        self._news.send(
            progress=TrainingProgress(
                generation=self._generation.number,
                nodes=len(self._generation.members),
                step=self._loop.step_count,
                total_steps=self._loop.progress.total_steps,
                epoch=self._loop.progress.epoch,
                samples=self._loop.progress.samples,
                total_samples=self._loop.progress.total_samples,
                global_batch=self._loop.progress.global_batch,
                learning_rate=self._learning_rate(),
                loss=self._loop.last_loss if final or not self._losses else sum(self._losses) / len(self._losses),
                samples_per_s=self._samples / elapsed_s if self._losses else None,
                checkpoint_step=self._checkpoints.newest_step,
                predicted_curve=self._loop.assembly.engine.predicted_curve,
                gain_together=self._loop.assembly.engine.gain_together,
                metrics=self._metrics,
                evaluations=tuple(self._evaluations),
                best=self._loop.evaluations.best,
                ended_early=self._loop.evaluations.ended_early,
                final=final,
            )
        )
        self._reset()

    def _learning_rate(self) -> float | None:
        """Learning rate of the first parameter group; None where the optimizer has no `lr`."""
        rate = self._loop.task.optimizer.param_groups[0].get("lr")
        return None if rate is None else float(rate)
