"""Reads a network's weights in the form in which the page takes them: JSON, in which each tensor is its float32
bytes in base 64."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oakum_client.demo.chain import DemoRole
from oakum_worker.checkpoint.folder_names import step_of

if TYPE_CHECKING:
    import torch

_NEEDED = {
    DemoRole.STACK: re.compile(r"[wbc]\d+"),
    DemoRole.RECOGNISER: re.compile(r"(layers\.\d+|head)\.(weight|bias)"),
    DemoRole.AUTOENCODER: re.compile(r"(encoder|decoder)\.\d+\.(weight|bias)"),
}
"""Names of the tensors that the page computes with."""


@dataclass(frozen=True)
class Network:
    """The weights of one checkpoint."""

    step: int
    """Finished steps of its trainer."""
    body: bytes
    """The JSON document."""

    @property
    def tag(self) -> str:
        """Differs where the documents differ."""
        return tag_of(self.body)


def tag_of(body: bytes) -> str:
    """A name for these bytes, as HTTP's entity tags are written."""
    return f'"{hashlib.sha256(body).hexdigest()[:20]}"'


class NetworkSource:
    """The network in a folder of checkpoints; a checkpoint is read once."""

    def __init__(self, role: DemoRole, folder: Path) -> None:
        self.role = role
        self.folder = folder
        self._read: tuple[str, ...] = ()
        self._network: Network | None = None

    def newest(self) -> Network | None:
        """The network of the newest whole checkpoint; None while there is none. Raises `CheckpointError` where
        none of the folder's checkpoints is whole, or they are of another model."""
        names = self._names()
        if names and names != self._read:
            self._network = read_network(self.role, self.folder)
            self._read = names
        return self._network

    def _names(self) -> tuple[str, ...]:
        if step_of(self.folder.name) is not None:
            return (self.folder.name,)
        return tuple(sorted(path.name for path in self.folder.glob("*") if step_of(path.name) is not None))


def read_network(role: DemoRole, folder: Path) -> Network:
    """The network of the newest whole checkpoint in `folder`, or of the checkpoint that `folder` is.

    Raises `CheckpointError` where there is none, or the model in it is not the role's.
    """
    from oakum_worker.checkpoint.weights import find_checkpoint, read_weights
    from oakum_worker.errors import CheckpointError

    checkpoint = find_checkpoint(folder)
    weights = {name: t for name, t in read_weights(checkpoint).items() if _NEEDED[role].fullmatch(name)}
    if not weights:
        raise CheckpointError(f"{checkpoint.path} has no {role} of examples/rbm: give the checkpoints of one")
    document = {"step": checkpoint.step, "tensors": {name: _tensor(t) for name, t in weights.items()}}
    return Network(checkpoint.step, json.dumps(document, separators=(",", ":")).encode())


def _tensor(tensor: torch.Tensor) -> dict[str, Any]:
    values = tensor.detach().cpu().numpy().astype("<f4")
    return {"shape": list(values.shape), "data": base64.b64encode(values.tobytes()).decode()}
