"""A copy of the model without parameter values, from which each generation builds its sharded module.

FSDP2 cannot be removed from a module, and a generation of another size needs other shards. So the task's model is
copied once with its parameters on the meta device, which holds no data, and each generation shards a copy of that.

**Units.** FSDP2 gathers and frees the parameters of a unit together. A *block* is a child of an `nn.ModuleList` or
`nn.Sequential`; each block with at least 1 MiB of parameters is a unit. In a block with more than 64 MiB and more
than a 16th of the model, inner blocks that are large enough are units of their own. All other parameters belong to
the model's own unit, among them those that are used inside and outside of a block (tied weights). FSDP2 gathers
parameters when a unit is called, so call the model before its parts, and a block as a whole: `block(x)`, not
`block.attention(x)`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.nn.utils.parametrize import ParametrizationList

from oakum_worker.chain import COMPUTE_WITHIN
from oakum_worker.errors import TaskError
from oakum_worker.parallel.meta_models import give_memory, without_values
from oakum_worker.torch_internals import forget_mesh_groups

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Classes of modules that are containers and never called."""

# FSDP2 calls functions that torch 2.14 renames; the warning concerns FSDP2's code and not ours.
warnings.filterwarnings("ignore", message=".*(all_gather_into_tensor|reduce_scatter_tensor).*deprecated")


@dataclass(frozen=True, slots=True)
class UnitSizes:
    """The sizes in bytes that decide which of a model's blocks become units: a block of at least
    `smallest_bytes` does; within a block of more than `divided_bytes`, inner blocks may become units, too."""

    smallest_bytes: int = 1 << 20
    divided_bytes: int = 64 << 20


class ModelTemplate:
    """Builds modules with the structure of a model, sharded over a generation's group or plain."""

    def __init__(self, model: nn.Module, *, sizes: UnitSizes = UnitSizes()) -> None:
        """Copy everything except the parameters' values from `model`, which is not changed.

        Raises `TaskError` where the model cannot be copied or sharded.
        """
        _check(model)
        self.device = next(model.parameters()).device
        self.aliases = _aliases(model)
        """For tied parameters: each further name -> the first name."""
        self._sizes = sizes
        self._template = without_values(model, model)
        self.shapes = {name: tuple(parameter.shape) for name, parameter in self._template.named_parameters()}
        """Name -> shape of each parameter; tied parameters count once."""
        for members in self._groups():
            _check_types(members)

    def build(
        self, group: dist.ProcessGroup | None, rank: int, world_size: int
    ) -> tuple[nn.Module, DeviceMesh | None]:
        """(module with uninitialised parameters, device mesh over which it is sharded or None). Does not
        communicate."""
        model = copy.deepcopy(self._template)
        if group is None:
            give_memory(model, model, self.device)
            return model, None
        mesh = _mesh(group, self.device, rank, world_size)
        for unit in (*_units(model, self._sizes), model):
            # One unit after the other: of what it takes in full, only this rank's rows stay.
            give_memory(unit, model, self.device)
            fully_shard(unit, mesh=mesh, mp_policy=_policy(unit))
        _sum_gradients(model)
        setattr(model, COMPUTE_WITHIN, _computed)
        register_fsdp_forward_method(model, COMPUTE_WITHIN)
        return model, mesh

    def _groups(self) -> Iterator[dict[str, nn.Parameter]]:
        """For each unit, its parameters by name."""
        names = {id(parameter): name for name, parameter in self._template.named_parameters()}
        taken: set[int] = set()
        for unit in (*_units(self._template, self._sizes), self._template):
            members = {names[id(p)]: p for p in unit.parameters() if id(p) not in taken}
            taken.update(map(id, members.values()))
            yield members


def release(mesh: DeviceMesh | None) -> None:
    """Release the mesh's process group with its connections.

    torch would keep it: its caches for DTensors hold every mesh for as long as the process lives.
    """
    forget_mesh_groups(mesh)


def _mesh(group: dist.ProcessGroup, device: torch.device, rank: int, world_size: int) -> DeviceMesh:
    # torch caches properties of a mesh, this rank's position included, under its size and names. A process that
    # had another rank in an earlier generation would cut wrong shards.
    return DeviceMesh.from_group(group, device.type, mesh_dim_names=(f"rank_{rank}_of_{world_size}",))


def _policy(unit: nn.Module) -> MixedPrecisionPolicy:
    """FSDP2's policy that sums gradients of half-precision parameters over the ranks in float32 and rounds
    once."""
    halves = any(p.dtype in (torch.bfloat16, torch.float16) for p in unit.parameters() if p.requires_grad)
    return MixedPrecisionPolicy(reduce_dtype=torch.float32 if halves else None)


def _computed(function: Callable[[Any], Any], values: Any) -> Any:
    return function(values)


def _sum_gradients(model: nn.Module) -> None:
    """Make FSDP2 sum gradients instead of averaging them: the loss is weighted already."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if hasattr(module, "set_reduce_scatter_unused_params"):  # torch 2.13; ranks may use other parameters
                module.set_reduce_scatter_unused_params(True, recurse=False)


def _units(model: nn.Module, sizes: UnitSizes) -> Iterator[nn.Module]:
    """The modules that are units, inner ones before those that contain them."""
    users = _users(model)
    taken: set[int] = set()
    for module in reversed(_blocks(model, users, sizes)):
        own = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if sum(p.nbytes for p in own) >= max(sizes.smallest_bytes, 1) and _keeps_to_itself(module, own, users):
            taken.update(map(id, own))
            yield module


def _blocks(model: nn.Module, users: dict[int, set[int]], sizes: UnitSizes) -> list[nn.Module]:
    """The model's blocks, outer ones before inner ones. Blocks within a block are listed only if that block is
    large enough to be divided, or shares parameters with modules outside of it."""
    listed = {
        id(block)
        for parent in model.modules()
        if isinstance(parent, nn.ModuleList | nn.Sequential) and not isinstance(parent, ParametrizationList)
        for block in parent.children()
    }
    divided_bytes = max(sizes.divided_bytes, sum(p.nbytes for p in model.parameters()) // 16)
    blocks: list[nn.Module] = []
    within: set[int] = set()
    for module in model.modules():
        if id(module) not in listed or id(module) in within or isinstance(module, _CONTAINERS):
            continue
        blocks.append(module)
        parameters = list(module.parameters())
        if sum(p.nbytes for p in parameters) <= divided_bytes and _keeps_to_itself(module, parameters, users):
            within.update(map(id, module.modules()))
    return blocks


def _keeps_to_itself(module: nn.Module, parameters: list[nn.Parameter], users: dict[int, set[int]]) -> bool:
    """Whether no module outside of `module` uses these parameters of it."""
    inside = set(map(id, module.modules()))
    return all(users[id(parameter)] <= inside for parameter in parameters)


def _users(model: nn.Module) -> dict[int, set[int]]:
    """Id of each parameter -> ids of the modules that own it directly."""
    users: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), set()).add(id(module))
    return users


def _aliases(model: nn.Module) -> dict[str, str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        name: names[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name != names[id(parameter)]
    }


def _check(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise TaskError(f"{name} has sparse gradients, which cannot be sharded: build it with sparse=False")
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise TaskError(f"parameter {name} is a scalar, which cannot be sharded: give it the shape (1,)")
        if not parameter.is_contiguous():
            raise TaskError(
                f"parameter {name} of shape {tuple(parameter.shape)} has the strides {parameter.stride()}, which "
                "cannot be sharded: leave parameters contiguous"
            )


def _check_types(members: dict[str, nn.Parameter]) -> None:
    types = {p.dtype: name for name, p in members.items() if p.requires_grad}
    if len(types) > 1:
        examples = " and ".join(f"{name} is {dtype}" for dtype, name in types.items())
        raise TaskError(
            f"{examples}: parameters of one block have to be of one type to be sharded; leave them all in float32 "
            "and set the spec's precision"
        )
