"""A trainer's metrics as one run in TensorBoard's files, made from what the service keeps.

The service has one series for a trainer, whatever fragments and generations it had, so the run is one, too. No
rank writes: ranks come and go, and two that are rank 0 one after the other would write two runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oakum_client.cli.app import CommandError

if TYPE_CHECKING:
    from oakum_service.api.schemas.series import EvaluationView, SeriesPoint

_MARKER = ".oakum-trainer"
_EVENT_FILES = "events.out.tfevents.*"
_TAGS = {"loss": "training/loss", "samples_per_s": "training/samples_per_s", "nodes": "training/nodes"}


class TensorBoardRun:
    """One trainer's run: a folder that only this class writes to. What an earlier command wrote there is
    replaced."""

    def __init__(self, folder: Path, trainer: str) -> None:
        """`trainer` is the trainer's id. Raises `CommandError` where TensorBoard is not installed, and where the
        folder has something else in it or cannot be written to."""
        writer = _writer_class()
        try:
            old = _own_files(folder, trainer)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _MARKER).write_text(trainer, encoding="utf-8")
            for file in old:
                file.unlink()
            self._writer = writer(str(folder))
        except OSError as error:
            raise CommandError(f"{folder} cannot be written to: {error.strerror or error}") from error
        self._written_at = float("-inf")
        self._written: set[tuple[int, float]] = set()

    def add(self, points: Iterable[SeriesPoint], evaluations: Iterable[EvaluationView]) -> int:
        """Write the points and evaluations that were not written before, in order of time. Returns their
        number."""
        count = 0
        for point in sorted(points, key=lambda point: point.at):
            if point.at > self._written_at:
                values = {tag: getattr(point, field) for field, tag in _TAGS.items()}
                self._write(values, point.step, point.at)
                self._written_at = point.at
                count += 1
        for evaluation in evaluations:
            if (evaluation.step, evaluation.at) not in self._written:
                self._write(
                    {f"evaluation/{name}": value for name, value in evaluation.metrics.items()},
                    evaluation.step,
                    evaluation.at,
                )
                self._written.add((evaluation.step, evaluation.at))
                count += 1
        self._writer.flush()
        return count

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _write(self, values: dict[str, float | None], step: int, at: float) -> None:
        for tag, value in values.items():
            if value is not None:
                self._writer.add_scalar(tag, float(value), step, wall_time=at)


def _own_files(folder: Path, trainer: str) -> list[Path]:
    """The files that an earlier command wrote for this trainer. Raises `CommandError` where the folder has
    something else in it."""
    if not folder.exists() or not any(folder.iterdir()):
        return []
    marker = folder / _MARKER
    if not marker.is_file() or marker.read_text(encoding="utf-8") != trainer:
        raise CommandError(
            f"{folder} has files in it that are not this trainer's run: name another folder, or remove these files"
        )
    return sorted(folder.glob(_EVENT_FILES))


def _writer_class() -> Any:
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise CommandError(
            "TensorBoard is not installed here: run pip install '.[tensorboard]' in Oakum's checkout; `--csv` "
            "prints the metrics without it"
        ) from error
    return Writer
