"""A checkpoint's weights for the plain model, outside Oakum."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import nn

from oakum_worker.checkpoint import manifest
from oakum_worker.checkpoint.document import read_document
from oakum_worker.checkpoint.durable import Checkpoint, DurableCheckpoints, being_read, fault_of, reason
from oakum_worker.errors import CheckpointError
from oakum_worker.state.tree import assemble, empty_tensors


def load_weights(folder: str | os.PathLike[str], model: nn.Module) -> int:
    """Load the weights and buffers of a durable checkpoint into a model as the trainer's entrypoint builds it.

    `folder` is a trainer's folder of checkpoints, of which the newest whole one is taken, or one checkpoint in it,
    `step-1200`. However the trainer was spread, sharded or in stages, the weights are whole, and they go to the
    model's own device and types. Returns the number of steps after which the checkpoint was taken. Raises
    `CheckpointError` where none is whole or the model is another one; the model is then what it was.
    """
    checkpoint = find_checkpoint(Path(folder))
    weights = read_weights(checkpoint)
    own = model.state_dict()
    if differing := _differing(weights, own):
        raise CheckpointError(
            f"the weights in {checkpoint.path} do not fit the model ({differing}): build it as the trainer's "
            "entrypoint does, with the spec's arguments; where the spec has parallel.batch_norm: group, with "
            "GroupNorm in place of BatchNorm"
        )
    model.load_state_dict(weights)
    return checkpoint.step


def read_weights(checkpoint: Checkpoint) -> dict[str, Any]:
    """The weights and buffers of a whole checkpoint, by their names in the model, as `state_dict` gives them.

    Raises `CheckpointError` where they cannot be read.
    """
    try:
        with being_read(checkpoint.path):
            document = read_document(checkpoint.path)["model"]
            tensors = empty_tensors(document)
            from oakum_worker.checkpoint import dcp_files  # late: see there

            dcp_files.read_tensors(checkpoint.path, tensors)
            return assemble(document, tensors)
    except Exception as error:
        raise CheckpointError(f"{checkpoint.path} cannot be read: {reason(error)}") from error


def find_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder` if it is one, else the newest whole one of the trainer's checkpoints in it.

    Raises `CheckpointError` where none is whole.
    """
    if manifest.manifest_path(folder).is_file():
        checkpoint = DurableCheckpoints(folder.parent, keep=1).named(folder.name)
        if (fault := fault_of(checkpoint)) is not None:
            raise CheckpointError(f"{folder} is not whole: {fault}; take the one before it")
        return checkpoint
    checkpoints = DurableCheckpoints(folder, keep=1)
    newest = checkpoints.newest()
    if newest is None:
        why = (
            "; ".join(checkpoints.skipped) or "it has no checkpoint; `oakum show NAME` says where a trainer's are"
        )
        raise CheckpointError(f"no weights can be loaded from {folder}: {why}")
    return newest


def _differing(weights: dict[str, object], own: dict[str, object]) -> str:
    """Up to three differences in names or shapes between the checkpoint's weights and the model's."""
    differences = [f"{name} is not in the model" for name in weights.keys() - own.keys()]
    differences += [f"{name} is not in the checkpoint" for name in own.keys() - weights.keys()]
    for name in weights.keys() & own.keys():
        here, there = (getattr(state[name], "shape", None) for state in (own, weights))
        if here != there:
            differences.append(f"{name} has the shape {_shape(there)} there and {_shape(here)} in the model")
    return ", ".join(sorted(differences)[:3])


def _shape(shape: object) -> str:
    return str(tuple(shape)) if isinstance(shape, tuple) else "none"
