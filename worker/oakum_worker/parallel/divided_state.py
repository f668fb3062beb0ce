"""The common part of states that divide a model: each rank has some of its tensors, or blocks of them.

An arranger chooses an arrangement for each generation, which says what each rank holds. The state's document
has the whole tensors' shapes and equals that of a replicated trainer. A rank knows the optimizer's state only
of what it holds, so `complete` joins the ranks' documents.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.parallel.arranging import LayoutArranger
from oakum_worker.parallel.holdings import Holdings, Part, Place, Rows, SplitTensor, block_of, by_part
from oakum_worker.parallel.offload import Offloaded
from oakum_worker.parallel.split_state import (
    LocalState,
    SplitState,
    Tell,
    fitting,
    model_document,
)
from oakum_worker.parallel.whole_parameters import kinds_of, replaced_parameters
from oakum_worker.protocol import Station
from oakum_worker.state.tree import Document, assemble, dismantle, tensor_leaves
from oakum_worker.task import Task

_A = TypeVar("_A")


class DividedState(SplitState, Generic[_A]):
    """The task's model and optimizer, of which this rank holds in each generation some of the tensors, or
    blocks of them.

    `task.model` and the optimizer stay the same objects and get other parameters. Until the first generation
    they have the user's own parameters, all of them. Parameters of which this rank holds nothing are on the
    meta device, without data.
    """

    is_partial = True
    arrangement: _A
    place: Place

    def __init__(self, task: Task, arranger: LayoutArranger[Any, Any, _A]) -> None:
        """Prepare for the task's model and optimizer. `arrangement` and `place` are not set here: the subclass
        sets them."""
        self._task = task
        self._arranging = arranger
        model = task.model
        self.device = next(model.parameters()).device
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._optimized = [[names[id(p)] for p in group["params"]] for group in task.optimizer.param_groups]
        self._kinds = kinds_of(model)
        self._shapes = {name: tuple(kind.shape) for name, kind in self._kinds.items()}
        live = self._live()
        self._keys = list({id(tensor): key for key, tensor in reversed(list(live.items()))}.values())[::-1]
        """Names of the tensors in the model's state; for a tied tensor, its first name."""
        self._document = model_document(live)
        self._held: dict[str, nn.Parameter] = dict(model.named_parameters())

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that this rank holds, or its blocks of them."""
        return list(self._held.values())

    @property
    @abstractmethod
    def first_held(self) -> list[nn.Parameter]:
        """The parameters or blocks that this rank holds and no lower rank does: over all ranks, each element
        occurs once."""

    @property
    @abstractmethod
    def whole_parts(self) -> Sequence[Part]:
        """Parts of the state that together are the whole model, without overlap."""

    @abstractmethod
    def _holdings(self, arrangement: _A) -> Holdings:
        """Which ranks of an arrangement hold which parts."""

    @abstractmethod
    def _install(self, rank: int) -> Mapping[str, nn.Parameter]:
        """Give the model this rank's parameters of the present arrangement, uninitialised. Returns those of which
        it holds anything, by name."""

    @abstractmethod
    def _split(self, leaf: dict[str, Any], name: str, *, is_divided: bool) -> SplitTensor | None:
        """The `SplitTensor` for a leaf of the state's document; None where the tensor is whole on every rank.

        The leaf describes the parameter or buffer `name`, or a tensor of the parameter's optimizer state.
        `is_divided` says whether it is the parameter or a tensor of its shape."""

    def lay_out(
        self,
        group: dist.ProcessGroup | None,
        rank: int,
        world_size: int,
        tell: Tell,
        stations: Sequence[Station] = (),
    ) -> None:
        """Agree with the other ranks on the arrangement, and give this rank its parameters, or its blocks of them,
        with arbitrary values. Collective.

        The model and the links are measured first, unless some rank knows their measurements; which links there
        are follows from the ranks' `stations`. Raises `GroupError` when a rank is gone, and
        `TaskError` where no arrangement exists.
        """
        self._arranging.measure(group, rank, stations, tell)
        self.drop()
        self.arrangement = self._arranging(world_size)
        self.place = Place(self._holdings(self.arrangement), rank)
        self._held = dict(self._install(rank))
        for group_, names in zip(self._task.optimizer.param_groups, self._optimized, strict=True):
            group_["params"] = [self._held[name] for name in names if name in self._held]

    def drop(self) -> None:
        """Release this rank's parameters and moments, which are no longer valid."""
        self._held = {}
        optimizer = self._task.optimizer
        optimizer.state.clear()
        if isinstance(optimizer, Offloaded):
            optimizer.forget()
        for group in optimizer.param_groups:
            group["params"] = []

    def free(self) -> None:
        """Does nothing: parameters released by `drop` are freed when no snapshot refers to them."""

    def capture(self, rest: Mapping[str, Any]) -> LocalState:
        """This rank's part of the state: model, optimizer and the entries of `rest`. The tensors are the live
        ones, not copies. Raises `TaskError` where the optimizer divides its state in a way that Oakum does not
        know."""
        document, tensors = dismantle({"optimizer": self._optimizer_state(), **rest})
        document = {"model": self._document, **document}
        for name, values in document["optimizer"]["state"].items():
            self._describe_whole(name, values)
        live = self._live()
        tensors |= {self._document[key]["$tensor"]: live[key].detach() for key in self._keys}
        split = self.split_tensors(document)
        rows = {tensor.path: self._own_block(tensor, tensors.pop(tensor.path)) for tensor in split}
        return LocalState(document, tensors, rows, split)

    def complete(self, state: LocalState, tell: Tell) -> LocalState:
        """The captured state with a document that describes the moments of all ranks. Collective: `tell` exchanges
        the ranks' descriptions."""
        own = state.document["optimizer"]["state"] if self._tells_moments else None
        document = self.joined(state.document, tell(own))
        split = self.split_tensors(document)
        rows = {t.path: state.rows[t.path] if t.path in state.rows else t.empty(t.nothing) for t in split}
        return LocalState(document, state.whole, rows, split)

    def joined(self, document: Document, entries: list[Any]) -> Document:
        """The document with the optimizer state of all ranks' `entries` merged into it. An entry is None for a
        rank that tells none."""
        known = {name: values for told in entries if told is not None for name, values in told.items()}
        return {**document, "optimizer": {**document["optimizer"], "state": known}}

    def split_tensors(self, document: Document) -> list[SplitTensor]:
        """The tensors of a state that are divided among the ranks, in an order that is equal on every rank.

        Raises `CheckpointError` if the state does not fit the model.
        """
        with fitting():
            return [*self._split_model(document["model"]), *self._split_moments(document["optimizer"])]

    def allocate(self, document: Document) -> dict[str, torch.Tensor]:
        """CPU memory for this rank's blocks of a state, by path: the model's own memory where possible."""
        live = self._live()
        places = {self._document[key]["$tensor"]: live[key].detach() for key in self._keys}
        rows = {}
        for tensor in self.split_tensors(document):
            place, held = places.get(tensor.path), block_of(self.place.parts, tensor)
            fits = place is not None and (place.device.type, place.dtype) == ("cpu", tensor.dtype)
            in_place = place is not None and fits and held and place.is_contiguous()
            rows[tensor.path] = place.reshape(held.shape) if place is not None and in_place else tensor.empty(held)
        return rows

    @torch.no_grad()
    def fill(self, document: Document, whole: Rows, rows: Rows) -> None:
        """Load a state whose `rows` are in memory from `allocate` into the model and the optimizer.

        Raises `CheckpointError` if the state does not fit the model or the optimizer.
        """
        with fitting():
            self._fill_model(document["model"], whole, rows)
            self._fill_optimizer(document["optimizer"], whole, rows)

    def model_tensors(self) -> list[SplitTensor]:
        """The model's tensors that are divided among the ranks."""
        return list(self._split_model(self._document))

    def model_parts(self) -> dict[Part, Rows]:
        """This rank's blocks of `model_tensors` by part, in CPU memory."""
        live = self._live()
        paths = {self._document[key]["$tensor"]: live[key].detach() for key in self._keys}
        split = self.model_tensors()
        rows = {t.path: self._own_block(t, paths[t.path]).to("cpu").contiguous() for t in split}
        return by_part(self.place.parts, split, rows)

    @contextlib.contextmanager
    def borrowed(self, values: Rows) -> Iterator[None]:
        """Context in which the model has whole parameters and buffers with the given `values` (path -> tensor). On
        exit the model has its own tensors and values again."""
        live = self._live()
        own = dict(self._task.model.named_parameters())
        given = {key: values.get(self._document[key]["$tensor"]) for key in self._keys}
        buffers = {key: live[key].clone() for key, value in given.items() if key not in own and value is not None}
        whole = {
            name: parameter
            if (value := given[name]) is None
            else nn.Parameter(value.reshape(self._shapes[name]).to(self.device), requires_grad=False)
            for name, parameter in own.items()
        }
        try:
            for key in buffers:
                live[key].copy_(values[self._document[key]["$tensor"]].reshape(live[key].shape))
            with replaced_parameters(self._task.model, whole):
                yield
        finally:
            for key, buffer in buffers.items():
                live[key].copy_(buffer)

    @property
    def _tells_moments(self) -> bool:
        """Whether this rank's description of its moments adds something to that of the other ranks."""
        return True

    def _describe_whole(self, name: str, values: Document) -> None:
        """Change `values`, the document of a parameter's optimizer state, so that it describes whole tensors.
        Does nothing here, where moments are whole already; a subclass overrides it."""

    def _live(self) -> dict[str, torch.Tensor]:
        """The model's parameters and buffers under all of their names."""
        state = self._task.model.state_dict(keep_vars=True)
        return {key: tensor for key, tensor in state.items() if isinstance(tensor, torch.Tensor)}

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

    def _own_block(self, split: SplitTensor, tensor: torch.Tensor) -> torch.Tensor:
        held = block_of(self.place.parts, split)
        return tensor.reshape(held.shape) if held else split.empty(held)

    def _split_model(self, document: Document) -> Iterator[SplitTensor]:
        for key in self._keys:
            known, leaf = self._document[key], document[key]
            if leaf["shape"] != known["shape"]:
                shapes = f"{leaf['shape']} in the state and {known['shape']} in the model"
                raise ValueError(f"{key} has the shape {shapes}")
            if (split := self._split(leaf, key, is_divided=key in self._shapes)) is not None:
                yield split

    def _split_moments(self, document: Document) -> Iterator[SplitTensor]:
        for name, values in sorted(document["state"].items()):
            shape = list(self._shapes[name])
            for leaf in tensor_leaves(values):
                if (split := self._split(leaf, name, is_divided=leaf["shape"] == shape)) is not None:
                    yield split

    def _fill_model(self, document: Document, whole: Rows, rows: Rows) -> None:
        live = self._live()
        for key in self._keys:
            path = document[key]["$tensor"]
            source = rows[path] if path in rows else whole[path]
            if source.numel() and not live[key].is_meta:
                target = live[key].detach()
                if target.data_ptr() != source.data_ptr():
                    target.copy_(source.reshape(target.shape))

    def _fill_optimizer(self, document: Document, whole: Rows, rows: Rows) -> None:
        own = [[name for name in names if name in self._held] for names in self._optimized]
        numbers = {name: number for number, name in enumerate(name for names in own for name in names)}
        state = {}
        for name, values in document["state"].items():
            if name in numbers:
                tensors = {leaf["$tensor"]: self._moment(name, leaf, rows) for leaf in tensor_leaves(values)}
                state[numbers[name]] = assemble(values, tensors)
        groups = [
            {**group, "params": [numbers[name] for name in group["params"] if name in numbers]}
            for group in assemble(document["param_groups"], whole)
        ]
        self._task.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _moment(self, name: str, leaf: dict[str, Any], rows: Rows) -> torch.Tensor:
        is_divided = tuple(leaf["shape"]) == self._shapes[name]
        return rows[leaf["$tensor"]].reshape(self._held[name].shape if is_divided else leaf["shape"]).clone()
