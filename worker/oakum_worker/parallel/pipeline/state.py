"""This rank's part of a pipeline trainer's state: the layers of its stages, and their moments.

Parameters, buffers of layers and all tensors of a parameter's optimizer state belong whole to one layer's part;
weights that several layers share (tied weights) belong to a separate part. Tensors that belong to no layer are on
every rank.

A rank knows the optimizer's state of its own layers only, so its document describes only these layers' moments.
`complete` joins the ranks' documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from oakum_worker.chain import Chain
from oakum_worker.parallel.divided_state import DividedState
from oakum_worker.parallel.holdings import Holdings, Part, Place, SplitTensor
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.parallel.whole_parameters import put_parameters
from oakum_worker.task import Task


class StageState(DividedState[Arrangement]):
    """The task's model and optimizer; in each generation this rank has the parameters of some layers.

    `task.model` stays the same object; parameters of other ranks' layers are on the meta device, without data. The
    optimizer stays the same object and has this rank's parameters. Until the first generation, model and optimizer
    have the user's own parameters, all of them.
    """

    def __init__(self, task: Task, chain: Chain, arranger: Arranger) -> None:
        super().__init__(task, arranger)
        self._homes, self.parts = homes_of(self._live(), chain)
        self.arrangement = arranger(1)
        self.place = Place(self._holdings(self.arrangement), 0)

    @property
    def first_held(self) -> list[nn.Parameter]:
        """The parameters that this rank holds and no lower rank does: over all ranks, each layer's parameter
        occurs once."""
        first = {part.number for part in self.place.first_of}
        return [parameter for name, parameter in self._held.items() if self._homes.get(name) in first]

    @property
    def whole_parts(self) -> Sequence[Part]:
        """All layers' parts."""
        return self.place.holdings.parts

    def _holdings(self, arrangement: Arrangement) -> Holdings:
        layers = [arrangement.layers_of(rank) for rank in range(arrangement.world_size)]
        parts = self.parts.items()
        return Holdings(tuple(tuple(part for part, users in parts if users & held) for held in layers))

    def _install(self, rank: int) -> Mapping[str, nn.Parameter]:
        own = {part.number for part in self.place.parts}
        held = {name for name in self._kinds if self._homes.get(name) in own or name not in self._homes}
        values = {name: kind.empty(self.device if name in held else "meta") for name, kind in self._kinds.items()}
        put_parameters(self._task.model, values)
        return {name: values[name] for name in values if name in held}

    def _split(self, leaf: dict[str, Any], name: str, *, is_divided: bool) -> SplitTensor | None:
        if name not in self._homes:
            return None
        home = self._homes[name]
        return SplitTensor(leaf["$tensor"], tuple(leaf["shape"]), getattr(torch, leaf["dtype"]), home)


def homes_of(live: Mapping[str, torch.Tensor], chain: Chain) -> tuple[dict[str, int], dict[Part, frozenset[int]]]:
    """(name of a parameter or buffer -> number of the part to which it belongs, part -> the layers that use the
    part). Tensors of no layer are left out."""
    users: dict[int, set[int]] = {}
    for number, layer in enumerate(chain.layers):
        for tensor in (*layer.parameters(), *layer.buffers()):
            users.setdefault(id(tensor), set()).add(number)
    tied = sorted({tuple(sorted(layers)) for layers in users.values() if len(layers) > 1})
    uses = [(number,) for number in range(len(chain.layers))] + tied
    numbers = {layers: number for number, layers in enumerate(uses)}
    parts = {Part(len(uses), number): frozenset(layers) for number, layers in enumerate(uses)}
    homes = {key: numbers[tuple(sorted(users[id(t)]))] for key, t in live.items() if id(t) in users}
    return homes, parts
