"""One rank's share of a sharded trainer's state.

Parameters, and the optimizer's moments of their shape, are split by rows over the ranks. All other tensors, such
as step counts and buffers, are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from oakum_worker.errors import TaskError
from oakum_worker.parallel.blocks import Block
from oakum_worker.parallel.copied_models import UsersParameters, lead_chains
from oakum_worker.parallel.holdings import Holdings, Place, Rows, SplitTensor, block_of
from oakum_worker.parallel.split_state import LocalState, SplitState, Tell, fitting
from oakum_worker.parallel.template import ModelTemplate, release
from oakum_worker.protocol import Station
from oakum_worker.state.tree import Document, assemble, dismantle, tensor_leaves
from oakum_worker.task import Task
from oakum_worker.torch_internals import gathered_parameters


class Shards(SplitState):
    """The state of a sharded trainer: the task's model and optimizer, split anew for each generation.

    In each generation `task.model` is a new module, and the optimizer, which stays one object because its
    scheduler refers to it, gets that module's parameters. Until the first generation they are the user's own.
    """

    is_partial = False

    def __init__(self, task: Task, template: ModelTemplate) -> None:
        self._task = task
        self._template = template
        self._parameters: dict[str, nn.Parameter] = dict(task.model.named_parameters())
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._optimized = [[names[id(p)] for p in group["params"]] for group in task.optimizer.param_groups]
        known = {*self._parameters, *template.aliases}
        self._others = [key for key in task.model.state_dict() if key not in known]
        """Keys of the model's state other than parameters: buffers and extra states of modules."""
        self.users: UsersParameters | None = None
        """Those of the entrypoint's own model, from the first generation on."""
        self._mesh: DeviceMesh | None = None
        self._built: list[torch.Tensor] = []
        self._stale: list[torch.Tensor] = []
        self.place = Place(Holdings.one_each(1), 0)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The present generation's parameters, which are sharded if it has several ranks."""
        return list(self._parameters.values())

    def leaves(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """(parameter, the tensor of which autograd computes the gradient) of each parameter that a forward pass of
        this generation has used."""
        if self._mesh is None:
            return ((parameter, parameter) for parameter in self._parameters.values())
        return gathered_parameters(self._task.model)

    @property
    def device(self) -> torch.device:
        """The device on which the task trains."""
        return self._template.device

    def lay_out(
        self,
        group: dist.ProcessGroup | None,
        rank: int,
        world_size: int,
        tell: Tell,
        stations: Sequence[Station] = (),
    ) -> None:
        """Give the task a new module, sharded for the new generation, whose parameters have arbitrary values, and
        its chains the layers of that module; the old parameters and moments are dropped. Does not communicate."""
        if self.users is None:
            self.users = UsersParameters(self._task.model)
        self.drop()
        model, self._mesh = self._template.build(group, rank, world_size)
        lead_chains(self._task, self._task.model, model)
        self._task.model = model
        self._parameters = dict(self._task.model.named_parameters())
        self._built = [_local(parameter) for parameter in self._parameters.values()]
        for group_, names in zip(self._task.optimizer.param_groups, self._optimized, strict=True):
            group_["params"] = [self._parameters[name] for name in names]
        self.place = Place(Holdings.one_each(world_size), rank)

    def drop(self) -> None:
        """Release the present parameters, moments and process group. The values are lost; memory that may still be
        referenced is freed by `free`."""
        release(self._mesh)
        self._mesh = None
        self._stale += self._built
        self._parameters, self._built = {}, []
        self._task.optimizer.state.clear()
        for group in self._task.optimizer.param_groups:
            group["params"] = []

    def free(self) -> None:
        """Free the memory of dropped parameters.

        The modules themselves may live until Python collects the reference cycles that FSDP2 creates.
        """
        for tensor in self._stale:
            tensor.untyped_storage().resize_(0)
        self._stale.clear()

    def capture(self, rest: Mapping[str, Any]) -> LocalState:
        """The present state: model, optimizer and the entries of `rest`.

        Raises `TaskError` where the optimizer splits its state in an unknown way.
        """
        state = {"model": self._model_state(), "optimizer": self._optimizer_state(), **rest}
        document, tensors = dismantle(state)
        for alias, name in self._template.aliases.items():
            document["model"][alias] = document["model"][name]
        split = self.split_tensors(document)
        rows = {tensor.path: self._own_rows(tensor, tensors.pop(tensor.path)) for tensor in split}
        return LocalState(document, {path: _whole(path, tensor) for path, tensor in tensors.items()}, rows, split)

    def complete(self, state: LocalState, tell: Tell) -> LocalState:
        """The captured state as it is: every rank's document describes the whole state already, so nothing is
        sent."""
        return state

    def joined(self, document: Document, entries: list[Any]) -> Document:
        """The document as it is: `entries` of other ranks add nothing, since each rank's document is complete."""
        return document

    def split_tensors(self, document: Document) -> list[SplitTensor]:
        """The tensors of a state that are split over the ranks, in the same order on every rank. Raises
        `CheckpointError` where the state belongs to another model."""
        with fitting():
            return [*self._split_parameters(document["model"]), *self._split_moments(document["optimizer"])]

    def allocate(self, document: Document) -> dict[str, torch.Tensor]:
        """Path of each tensor that is split -> CPU memory for this rank's rows of it: the parameters' own
        memory where they are on the CPU and of the state's type, otherwise new memory."""
        moments = self._split_moments(document["optimizer"])
        rows = {tensor.path: tensor.empty(self._block(tensor)) for tensor in moments}
        for tensor, parameter in zip(
            self._split_parameters(document["model"]), self._parameters.values(), strict=True
        ):
            in_place = parameter.device.type == "cpu" and parameter.dtype == tensor.dtype
            rows[tensor.path] = _local(parameter) if in_place else tensor.empty(self._block(tensor))
        return rows

    @torch.no_grad()
    def fill(self, document: Document, whole: Rows, rows: Rows) -> None:
        """Load a state into the model and the optimizer: `whole` tensors by path, and this rank's `rows`, which
        must be in memory from `allocate`. Raises `CheckpointError` where the state belongs to another model or
        optimizer."""
        with fitting():
            self._fill_model(document["model"], whole, rows)
            self._fill_optimizer(document["optimizer"], whole, rows)

    def _model_state(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(self._parameters)
        if self._others:
            # Read from the modules, because `state_dict` fails after an interrupted forward pass.
            buffers = dict(self._task.model.named_buffers(remove_duplicate=False))
            extra = [key for key in self._others if key not in buffers]
            state |= {key: buffers[key] for key in self._others if key in buffers}
            state |= {key: self._task.model.state_dict()[key] for key in extra}
        return state

    def _optimizer_state(self) -> dict[str, Any]:
        optimizer = self._task.optimizer
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        return {
            "state": {names[id(parameter)]: dict(values) for parameter, values in optimizer.state.items()},
            "param_groups": [
                {**group, "params": list(names_)}
                for group, names_ in zip(optimizer.param_groups, self._optimized, strict=True)
            ],
        }

    def _block(self, tensor: SplitTensor) -> Block:
        return block_of(self.place.parts, tensor)

    def _own_rows(self, split: SplitTensor, tensor: torch.Tensor) -> torch.Tensor:
        local = _local(tensor)
        num_rows, *_ = self._block(split).shape
        if len(local) != num_rows:
            raise TaskError(
                f"{split.path}: this rank holds {len(local)} rows of {split.num_rows} instead of {num_rows}: the "
                "optimizer splits its state in a way that cannot be carried to another number of ranks"
            )
        return local

    def _fill_model(self, document: Document, whole: Rows, rows: Rows) -> None:
        for name, parameter in self._parameters.items():
            local, source = _local(parameter), rows[document[name]["$tensor"]]
            if local.data_ptr() != source.data_ptr():
                local.copy_(source)
        buffers = dict(self._task.model.named_buffers(remove_duplicate=False))
        extra = {}
        for key in self._others:
            value = assemble(document[key], whole)
            if key in buffers:
                buffers[key].copy_(value)
            else:
                extra[key] = value
        if extra:
            self._task.model.load_state_dict(extra, strict=False)

    def _fill_optimizer(self, document: Document, whole: Rows, rows: Rows) -> None:
        split = {tensor.path: tensor for tensor in self._split_moments(document)}
        tensors = {path: self._placed(rows[path], tensor.shape) for path, tensor in split.items()}
        tensors |= {
            leaf["$tensor"]: self._replicated(whole[leaf["$tensor"]])
            for leaf in tensor_leaves(document)
            if leaf["$tensor"] not in split
        }
        state = assemble(document, tensors)
        numbers = {name: number for number, name in enumerate(name for names in self._optimized for name in names)}
        self._task.optimizer.load_state_dict(
            {
                "state": {numbers[name]: values for name, values in state["state"].items()},
                "param_groups": [
                    {**group, "params": [numbers[name] for name in group["params"]]}
                    for group in state["param_groups"]
                ],
            }
        )

    def _split_parameters(self, document: Document) -> Iterator[SplitTensor]:
        for name, shape in self._template.shapes.items():
            tensor = _split(document[name])
            if tensor.shape != shape:
                raise ValueError(f"{name} has the shape {tensor.shape} in the state and {shape} in the model")
            yield tensor

    def _split_moments(self, document: Document) -> Iterator[SplitTensor]:
        for name, values in sorted(document["state"].items()):
            shape = list(self._template.shapes[name])
            yield from (_split(leaf) for leaf in tensor_leaves(values) if leaf["shape"] == shape)

    def _placed(self, local: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        local = local.to(self._template.device)
        if self._mesh is None:
            return local
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local, self._mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
        )

    def _replicated(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the optimizer's state that every rank has in full: a scalar as a plain copy; anything larger
        as a DTensor, because it is combined with sharded ones."""
        tensor = tensor.clone()
        if tensor.ndim == 0:
            return tensor
        tensor = tensor.to(self._template.device)
        if self._mesh is None:
            return tensor
        return DTensor.from_local(tensor, self._mesh, [Replicate()], run_check=False)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(path: str, tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, DTensor) and not all(isinstance(place, Replicate) for place in tensor.placements):
        raise TaskError(
            f"{path} of shape {tuple(tensor.shape)} is split and not shaped like its parameter: use an optimizer "
            "whose moments are, such as AdamW, or train without sharding"
        )
    return _local(tensor)


def _split(leaf: dict[str, Any]) -> SplitTensor:
    return SplitTensor(leaf["$tensor"], tuple(leaf["shape"]), getattr(torch, leaf["dtype"]))
