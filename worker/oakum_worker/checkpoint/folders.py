"""The folders of durable checkpoints of one account's trainers. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oakum_worker.checkpoint.adoption import adopt
from oakum_worker.checkpoint.best import read_best


@dataclass(frozen=True)
class CheckpointFolders:
    """Folders of durable checkpoints below `root`, each named by its trainer's id."""

    root: Path

    def of(self, trainer_id: str) -> Path:
        """The folder of the trainer's checkpoints."""
        return self.root / trainer_id

    def exist(self, trainer_id: str) -> bool:
        """Whether the trainer's folder is there."""
        return self.of(trainer_id).is_dir()

    def best_step(self, trainer_id: str) -> int | None:
        """The step of the trainer's best checkpoint; None if none is."""
        best = read_best(self.of(trainer_id))
        return None if best is None else best.step

    def adopt(self, source: str, target: str, step: int | None = None) -> int:
        """Give the trainer `target` the checkpoints of the trainer `source`, or the one of a step. Returns the
        step of the newest one given. Raises `CheckpointError` as `adoption.adopt` does."""
        return adopt(self.of(source), self.of(target), source, step)

    def size_bytes(self, trainers: Iterable[str]) -> int:
        """Bytes on the disk of all files in the trainers' folders; a file with several names within one folder
        counts once."""
        return sum(_size_bytes(self.of(trainer_id)) for trainer_id in trainers)


def _size_bytes(folder: Path) -> int:
    bytes_of: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:  # a checkpoint that was just replaced
            continue
        bytes_of[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(bytes_of.values())
