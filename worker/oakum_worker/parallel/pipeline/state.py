"""This rank's part of a pipeline trainer's state: the layers of its stages, and their moments.

It takes the part of `oakum_worker.parallel.shards.Shards`. Parameters, buffers of layers and everything the
optimizer keeps for a parameter are whole tensors that belong to a layer; weights that several layers share (tied
weights) belong to a part of their own. What belongs to no layer is on every rank.

A rank knows the optimizer's state of its own layers alone, so its document of the state tells of these alone.
`complete` puts together what the ranks know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.chain import Chain
from oakum_worker.errors import CheckpointError
from oakum_worker.parallel.layout import Part, Place, Rows, SplitTensor, by_part, rows_of
from oakum_worker.parallel.offload import Offloaded
from oakum_worker.parallel.pipeline.arrangement import holdings
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.parallel.shards import LocalState, Tell, tensor_leaves
from oakum_worker.skeleton import Document, assemble, dismantle
from oakum_worker.task import Task


class StageState:
    """The task's model and optimizer, of which this rank has some layers in each generation.

    `task.model` stays the same module; parameters of layers that are elsewhere are on the meta device, without
    data. The optimizer stays the same object and holds this rank's parameters. Until the first generation all of
    them are the user's own.
    """

    is_partial = True
    """Whether a rank's document lacks what others know."""

    def __init__(self, task: Task, chain: Chain, arranger: Arranger) -> None:
        self._task = task
        self._arranger = arranger
        self.device = next(task.model.parameters()).device
        model = task.model
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._optimized = [[names[id(p)] for p in group["params"]] for group in task.optimizer.param_groups]
        self._slots = {
            name: [slot for slot in _slots(model) if id(getattr(*slot)) == key] for key, name in names.items()
        }
        self._templates = {name: (p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters()}
        live = self._live()
        self._keys = list({id(tensor): key for key, tensor in reversed(list(live.items()))}.values())[::-1]
        """Names in the model's state; of tied ones the first."""
        self._document = _document(live)
        self._homes, self.parts = _homes(live, chain)
        self._held: dict[str, nn.Parameter] = dict(model.named_parameters())
        self.arrangement = arranger(1)
        self.place = Place(holdings(self.arrangement, self.parts), 0)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that this rank holds."""
        return list(self._held.values())

    @property
    def first_held(self) -> list[nn.Parameter]:
        """Those of which no lower rank is a holder: over all ranks, each parameter once."""
        first = {part.number for part in self.place.first_of}
        return [parameter for name, parameter in self._held.items() if self._homes.get(name) in first]

    def lay_out(self, group: dist.ProcessGroup | None, rank: int, world_size: int, tell: Tell) -> None:
        """Collective: agree on the arrangement, and give this rank its layers' parameters, still without values.

        What the arrangement follows from is measured where nobody knows it yet. Raises `GroupError`.
        """
        self._measure(group, rank, tell)
        self.drop()
        self.arrangement = self._arranger(world_size)
        self.place = Place(holdings(self.arrangement, self.parts), rank)
        own = {part.number for part in self.place.parts}
        for name, (shape, dtype, trained) in self._templates.items():
            held = self._homes.get(name) in own or name not in self._homes
            memory = torch.empty(shape, dtype=dtype, device=self.device if held else "meta")
            parameter = nn.Parameter(memory, requires_grad=trained)
            for module, attribute in self._slots[name]:
                setattr(module, attribute, parameter)
            if held:
                self._held[name] = parameter
        for group_, names in zip(self._task.optimizer.param_groups, self._optimized, strict=True):
            group_["params"] = [self._held[name] for name in names if name in self._held]

    def drop(self) -> None:
        """Let go of parameters and moments, which are worth nothing any more."""
        self._held = {}
        optimizer = self._task.optimizer
        optimizer.state.clear()
        if isinstance(optimizer, Offloaded):
            optimizer.forget()
        for group in optimizer.param_groups:
            group["params"] = []

    def free(self) -> None:
        """Nothing is left to free: parameters that were dropped live as long as a snapshot needs them."""

    def capture(self, rest: Mapping[str, Any]) -> LocalState:
        """The state as this rank knows it, with `rest` beside model and optimizer."""
        document, tensors = dismantle({"optimizer": self._optimizer_state(), **rest})
        document = {"model": self._document, **document}
        live = self._live()
        tensors |= {self._document[key]["$tensor"]: live[key].detach() for key in self._keys}
        split = self.split_tensors(document)
        rows = {tensor.path: self._own_rows(tensor, tensors.pop(tensor.path)) for tensor in split}
        return LocalState(document, tensors, rows, split)

    def complete(self, state: LocalState, tell: Tell) -> LocalState:
        """Collective: the same with a document of all that the ranks know."""
        document = self.joined(state.document, tell(state.document["optimizer"]["state"]))
        split = self.split_tensors(document)
        rows = {t.path: state.rows[t.path] if t.path in state.rows else t.empty(range(0)) for t in split}
        return LocalState(document, state.whole, rows, split)

    def joined(self, document: Document, entries: list[Any]) -> Document:
        """The document with what others know of the optimizer's state; None of who knows nothing."""
        known = {name: values for told in entries if told is not None for name, values in told.items()}
        return {**document, "optimizer": {**document["optimizer"], "state": known}}

    def split_tensors(self, document: Document) -> list[SplitTensor]:
        """Which tensors of a state belong to a part, in an order that is the same on every rank.

        Raises `CheckpointError` where the state is that of another model.
        """
        with _fitting():
            return [*self._split_model(document["model"]), *self._split_moments(document["optimizer"])]

    def allocate(self, document: Document) -> dict[str, torch.Tensor]:
        """Memory that the CPU reaches for this rank's rows of a state; that of the model where it can be."""
        live = self._live()
        places = {self._document[key]["$tensor"]: live[key].detach() for key in self._keys}
        rows = {}
        for tensor in self.split_tensors(document):
            place, held = places.get(tensor.path), rows_of(self.place.parts, tensor)
            fits = place is not None and (place.device.type, place.dtype) == ("cpu", tensor.dtype)
            in_place = place is not None and fits and held and place.is_contiguous()
            rows[tensor.path] = _as_rows(place, tensor) if place is not None and in_place else tensor.empty(held)
        return rows

    @torch.no_grad()
    def fill(self, document: Document, whole: Rows, rows: Rows) -> None:
        """Take up a state, of which `rows` came from `allocate`; moments become the optimizer's.

        Raises `CheckpointError` where it belongs to another model or optimizer.
        """
        with _fitting():
            self._fill_model(document["model"], whole, rows)
            self._fill_optimizer(document["optimizer"], whole, rows)

    def model_tensors(self) -> list[SplitTensor]:
        """The model's tensors that belong to a part."""
        return list(self._split_model(self._document))

    def model_parts(self) -> dict[Part, Rows]:
        """This rank's rows of them, in memory that the CPU reaches."""
        live = self._live()
        paths = {self._document[key]["$tensor"]: live[key].detach() for key in self._keys}
        split = self.model_tensors()
        rows = {t.path: self._own_rows(t, paths[t.path]).to("cpu").contiguous() for t in split}
        return by_part(self.place.parts, split, rows)

    @contextlib.contextmanager
    def borrowed(self, values: Rows) -> Iterator[None]:
        """Within it the model consists of these values, by path, and of what belongs to no part."""
        live = self._live()
        placed = [(slot, getattr(*slot)) for name in self._templates for slot in self._slots[name]]
        buffers = {key: live[key].clone() for key in self._keys if key not in self._templates}
        try:
            for key in self._keys:
                value = values.get(self._document[key]["$tensor"])
                if value is None:
                    continue
                value = value.reshape(self._document[key]["shape"]).to(self.device)
                if key in buffers:
                    live[key].copy_(value)
                for slot in self._slots.get(key, ()):
                    setattr(*slot, nn.Parameter(value, requires_grad=False))
            yield
        finally:
            for slot, parameter in placed:
                setattr(*slot, parameter)
            for key, buffer in buffers.items():
                live[key].copy_(buffer)

    def _live(self) -> dict[str, torch.Tensor]:
        """The model's parameters and buffers under all of their names."""
        state = self._task.model.state_dict(keep_vars=True)
        return {key: tensor for key, tensor in state.items() if isinstance(tensor, torch.Tensor)}

    def _measure(self, group: dist.ProcessGroup | None, rank: int, tell: Tell) -> None:
        arranger = self._arranger
        arranger.agree(tell(arranger.measurements))
        lacks_layers, lacks_links = not arranger.knows_layers, group is not None and not arranger.knows_links
        if lacks_layers and rank == 0:  # Nobody has trained here yet: the model is the user's own, whole.
            arranger.measure_layers()
        if lacks_links and group is not None:
            arranger.measure_links(group, rank)
        if lacks_layers or lacks_links:
            arranger.agree(tell(arranger.measurements))

    def _optimizer_state(self) -> dict[str, Any]:
        optimizer = self._task.optimizer
        names = {id(parameter): name for name, parameter in self._held.items()}
        return {
            "state": {names[id(parameter)]: dict(values) for parameter, values in optimizer.state.items()},
            "param_groups": [
                {**group, "params": list(names_)}
                for group, names_ in zip(optimizer.param_groups, self._optimized, strict=True)
            ],
        }

    def _own_rows(self, split: SplitTensor, tensor: torch.Tensor) -> torch.Tensor:
        held = rows_of(self.place.parts, split)
        return _as_rows(tensor, split) if held else split.empty(held)

    def _split_model(self, document: Document) -> Iterator[SplitTensor]:
        for key in self._keys:
            known, leaf = self._document[key], document[key]
            if leaf["shape"] != known["shape"]:
                shapes = f"{leaf['shape']} in the state and {known['shape']} in the model"
                raise ValueError(f"{key} has the shape {shapes}")
            if key in self._homes:
                yield _split(leaf, self._homes[key])

    def _split_moments(self, document: Document) -> Iterator[SplitTensor]:
        for name, values in sorted(document["state"].items()):
            if name in self._homes:
                yield from (_split(leaf, self._homes[name]) for leaf in tensor_leaves(values))

    def _fill_model(self, document: Document, whole: Rows, rows: Rows) -> None:
        live = self._live()
        for key in self._keys:
            path = document[key]["$tensor"]
            source = rows.get(path) if key in self._homes else whole[path]
            if source is not None and source.numel() and not live[key].is_meta:
                target = live[key].detach()
                if target.data_ptr() != source.data_ptr():
                    target.copy_(source.reshape(target.shape))

    def _fill_optimizer(self, document: Document, whole: Rows, rows: Rows) -> None:
        own = [[name for name in names if name in self._held] for names in self._optimized]
        numbers = {name: number for number, name in enumerate(name for names in own for name in names)}
        state = {}
        for name, values in document["state"].items():
            if name in numbers:
                tensors = {
                    leaf["$tensor"]: rows[leaf["$tensor"]].reshape(leaf["shape"]).clone()
                    for leaf in tensor_leaves(values)
                }
                state[numbers[name]] = assemble(values, tensors)
        groups = [
            {**group, "params": [numbers[name] for name in group["params"] if name in numbers]}
            for group in assemble(document["param_groups"], whole)
        ]
        self._task.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _slots(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """(module, attribute) of every parameter, each of those that are tied."""
    for module in model.modules():
        for name, _ in module.named_parameters(recurse=False, remove_duplicate=False):
            yield module, name


def _document(live: Mapping[str, torch.Tensor]) -> Document:
    """Of the model's state; tied weights are told of under each of their names."""
    first = {id(tensor): key for key, tensor in reversed(list(live.items()))}
    document, _ = dismantle({"model": dict(live)})
    return {key: document["model"][first[id(tensor)]] for key, tensor in live.items()}


def _homes(live: Mapping[str, torch.Tensor], chain: Chain) -> tuple[dict[str, int], dict[Part, frozenset[int]]]:
    """The part of each parameter and buffer by its name, and the layers that use each part."""
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


def _as_rows(tensor: torch.Tensor, split: SplitTensor) -> torch.Tensor:
    return tensor if split.shape else tensor.reshape(1)


def _split(leaf: dict[str, Any], home: int) -> SplitTensor:
    return SplitTensor(leaf["$tensor"], tuple(leaf["shape"]), getattr(torch, leaf["dtype"]), home)


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the state does not fit the task ({error}): use the model, optimizer and chain it was made with, or "
            "begin a new trainer"
        ) from error
