"""A trainer's model as a file or folder, for the command `oakum export` and for scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oakum_client.rest.errors import ClientError
from oakum_service.api.schemas.trainers import TrainerView
from oakum_worker.checkpoint.best import read_best
from oakum_worker.checkpoint.folder_names import folder_name, folders_by_step
from oakum_worker.errors import CheckpointError, reason_of

if TYPE_CHECKING:
    from oakum_worker.checkpoint.export import Exported


class ExportError(ClientError):
    """The model cannot be exported."""


def folder_to_export(view: TrainerView, step: str | None) -> Path:
    """The folder to read: of all the trainer's checkpoints, or of the checkpoint after `step`, which is a number
    or `best`. Raises `ExportError` if there is no such checkpoint, or its folder is not on this machine."""
    if view.is_private:
        raise ExportError(
            f"trainer {view.name} is another user's: only its user and administrators may export its model"
        )
    if not view.checkpoint_folder:
        raise ExportError(f"trainer {view.name} has no checkpoint yet: `oakum show {view.name}` tells when it has")
    folder = Path(view.checkpoint_folder)
    if not folder.is_dir():
        raise ExportError(
            f"the checkpoints are in {folder}, which is not on this machine: export on the service's machine or a "
            "node"
        )
    if step is None:
        return folder
    if step == "best":
        return folder / folder_name(_best_step(folder, view.name))
    if not step.isdecimal():
        raise ExportError(f"step {step}: give a number of steps, or best")
    try:
        known = folders_by_step(folder)
    except OSError as error:
        raise ExportError(f"{folder} cannot be read: {reason_of(error)}; make it readable") from error
    if int(step) not in known:
        there = ", ".join(map(str, sorted(known))) or "none"
        raise ExportError(f"there is no checkpoint after step {step} any more; there are: {there}")
    return known[int(step)]


def export_model(
    folder: Path,
    output: Path,
    tell: Callable[[int, int], None] = lambda done, total: None,
    *,
    is_exact: bool = True,
) -> Exported:
    """Write the weights of the checkpoint in `folder` to the file `output`, or to a folder for `from_pretrained`
    where the name has no suffix. `tell` takes the bytes written so far and all bytes. `is_exact`: whether the
    trainer's results do not depend on its nodes; where they may, safetensors say so. Returns what was written.
    Needs torch. Raises `ExportError` where that fails."""
    # Late: they need torch.
    from oakum_worker.checkpoint.export import export_weights
    from oakum_worker.checkpoint.model_folder import export_model_folder

    write = export_weights if output.suffix else export_model_folder
    try:
        return write(folder, output, tell, is_exact=is_exact)
    except CheckpointError as error:
        raise ExportError(str(error)) from error


def _best_step(folder: Path, trainer: str) -> int:
    best = read_best(folder)
    if best is None:
        raise ExportError(
            f"trainer {trainer} has no best checkpoint: its spec names no metric "
            "(evaluate: {keep_best: METRIC}), or it has not been evaluated yet"
        )
    return best.step
