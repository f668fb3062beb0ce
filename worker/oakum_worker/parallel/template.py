"""A model without parameter values, from which every generation's sharded module is built.

FSDP2 cannot be taken off a module again, and a generation of another size needs other shards. So the task's model
is copied once with its parameters on the meta device, which hold no data, and each generation shards a copy of
that.

**Units.** The parameters of a unit are gathered and freed together. Each block, that is each child of an
`nn.ModuleList` or `nn.Sequential`, is a unit if it has at least 1 MiB of parameters that no unit within it has,
and none that is used outside of it, too (tied weights); the model takes what is left. Call a block as a whole,
`block(x)` and not `block.attention(x)`, and the model itself before its parts: that is when FSDP2 gathers
parameters.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.utils.parametrize import ParametrizationList

from oakum_worker.errors import TaskError

_UNIT_BYTES = 1 << 20
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that are never called."""

# The names are those of this torch until 2.14; what they are called afterwards is FSDP2's own business.
warnings.filterwarnings("ignore", message=".*(all_gather_into_tensor|reduce_scatter_tensor).*deprecated")


class ModelTemplate:
    """Builds modules of a model's structure; a module is sharded over a generation's group, or plain."""

    def __init__(self, model: nn.Module, *, unit_bytes: int = _UNIT_BYTES) -> None:
        """Takes buffers' values and everything but the parameters' values from `model`, which stays as it is.

        Raises `TaskError` where the model cannot be copied or sharded.
        """
        _check(model)
        self.device = next(model.parameters()).device
        self.aliases = _aliases(model)
        """Other names of tied parameters -> the name that counts."""
        self._unit_bytes = unit_bytes
        self._template = _without_values(model)
        self.shapes = {name: tuple(parameter.shape) for name, parameter in self._template.named_parameters()}
        """Of the parameters, by name; tied ones once."""
        for members in self._groups():
            _check_types(members)

    def build(
        self, group: dist.ProcessGroup | None, rank: int, world_size: int
    ) -> tuple[nn.Module, DeviceMesh | None]:
        """A module with uninitialised parameters, and the mesh it is sharded over. Does not communicate."""
        model = copy.deepcopy(self._template)
        if group is None:
            _give_memory(model, model, self.device)
            return model, None
        mesh = _mesh(group, self.device, rank, world_size)
        for unit in (*_units(model, self._unit_bytes), model):
            # One unit after the other: of what it takes in full, only this rank's rows stay.
            _give_memory(unit, model, self.device)
            fully_shard(unit, mesh=mesh)
        _sum_gradients(model)
        return model, mesh

    def _groups(self) -> Iterator[dict[str, nn.Parameter]]:
        """The parameters by name, as they are gathered together."""
        names = {id(parameter): name for name, parameter in self._template.named_parameters()}
        taken: set[int] = set()
        for unit in (*_units(self._template, self._unit_bytes), self._template):
            members = {names[id(p)]: p for p in unit.parameters() if id(p) not in taken}
            taken.update(map(id, members.values()))
            yield members


def release(mesh: DeviceMesh | None) -> None:
    """Let go of the mesh's process group, which torch would keep, connections included.

    Its caches for DTensors keep every mesh that they have seen, for as long as the process lives.
    """
    getattr(mesh, "_pg_registry", {}).clear()


def _mesh(group: dist.ProcessGroup, device: torch.device, rank: int, world_size: int) -> DeviceMesh:
    # torch caches what it knows of a mesh, this rank's place in it included, and takes meshes of the same size and
    # names for the same one. A process that had another rank in an earlier generation would then cut wrong shards.
    return DeviceMesh.from_group(group, device.type, mesh_dim_names=(f"rank_{rank}_of_{world_size}",))


def _sum_gradients(model: nn.Module) -> None:
    """Have gradients added up as they are: the loss is weighted already."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if hasattr(module, "set_reduce_scatter_unused_params"):  # torch 2.13; ranks may use other parameters
                module.set_reduce_scatter_unused_params(True, recurse=False)


def _give_memory(unit: nn.Module, model: nn.Module, device: torch.device) -> None:
    """Put uninitialised parameters in the place of a unit's meta ones, everywhere in the model.

    `nn.Module.to_empty` would untie weights that are tied.
    """
    empty = [parameter for parameter in unit.parameters() if parameter.is_meta]
    real = {id(p): nn.Parameter(torch.empty_like(p, device=device), p.requires_grad) for p in empty}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) in real:
                setattr(module, name, real[id(parameter)])


def _without_values(model: nn.Module) -> nn.Module:
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise TaskError(
            f"the model cannot be copied ({type(error).__name__}: {error}), which sharding needs: keep only what "
            "copy.deepcopy takes in its attributes"
        ) from error


def _units(model: nn.Module, unit_bytes: int) -> Iterator[nn.Module]:
    """The modules that are gathered on their own, inner ones before those that contain them."""
    blocks = {
        id(block)
        for parent in model.modules()
        if isinstance(parent, nn.ModuleList | nn.Sequential) and not isinstance(parent, ParametrizationList)
        for block in parent.children()
    }
    users = _users(model)
    taken: set[int] = set()
    for module in reversed(list(model.modules())):
        if id(module) not in blocks or isinstance(module, _CONTAINERS):
            continue
        inside = set(map(id, module.modules()))
        own = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if sum(p.nbytes for p in own) >= max(unit_bytes, 1) and all(users[id(p)] <= inside for p in own):
            taken.update(map(id, own))
            yield module


def _users(model: nn.Module) -> dict[int, set[int]]:
    """The modules that have a parameter as their own, for each parameter."""
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
