"""A model without parameter values, from which every generation's sharded module is built.

FSDP2 cannot be taken off a module again, and a generation of another size needs other shards. So the task's model
is copied once with its parameters on the meta device, which hold no data, and each generation shards a copy of
that.

**Units.** The parameters of a unit are gathered and freed together. Each block, that is each child of an
`nn.ModuleList` or `nn.Sequential`, is a unit with all that is in it, if it has 1 MiB of parameters or more. A
block with more than 64 MiB and a 16th of the model leaves those of its own blocks that are large enough to be
units themselves. Parameters that are used outside of a block, too (tied weights), and the rest belong to the
model's own unit. Call a block as a whole, `block(x)` and not `block.attention(x)`, and the model before its parts:
that is when FSDP2 gathers parameters.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.utils.parametrize import ParametrizationList

from oakum_worker.errors import TaskError

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that are never called."""

# The names are those of this torch until 2.14; what they are called afterwards is FSDP2's own business.
warnings.filterwarnings("ignore", message=".*(all_gather_into_tensor|reduce_scatter_tensor).*deprecated")


@dataclass(frozen=True, slots=True)
class UnitSizes:
    """Which blocks are gathered on their own."""

    smallest_bytes: int = 1 << 20
    divided_bytes: int = 64 << 20


class ModelTemplate:
    """Builds modules of a model's structure; a module is sharded over a generation's group, or plain."""

    def __init__(self, model: nn.Module, *, sizes: UnitSizes = UnitSizes()) -> None:
        """Takes buffers' values and everything but the parameters' values from `model`, which stays as it is.

        Raises `TaskError` where the model cannot be copied or sharded.
        """
        _check(model)
        self.device = next(model.parameters()).device
        self.aliases = _aliases(model)
        """Other names of tied parameters -> the name that counts."""
        self._sizes = sizes
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
        for unit in (*_units(model, self._sizes), model):
            # One unit after the other: of what it takes in full, only this rank's rows stay.
            _give_memory(unit, model, self.device)
            fully_shard(unit, mesh=mesh, mp_policy=_policy(unit))
        _sum_gradients(model)
        return model, mesh

    def _groups(self) -> Iterator[dict[str, nn.Parameter]]:
        """The parameters by name, as they are gathered together."""
        names = {id(parameter): name for name, parameter in self._template.named_parameters()}
        taken: set[int] = set()
        for unit in (*_units(self._template, self._sizes), self._template):
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


def _policy(unit: nn.Module) -> MixedPrecisionPolicy:
    """Gradients of half-precision parameters are summed over ranks in float32, and rounded once."""
    halves = any(p.dtype in (torch.bfloat16, torch.float16) for p in unit.parameters() if p.requires_grad)
    return MixedPrecisionPolicy(reduce_dtype=torch.float32 if halves else None)


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


def _units(model: nn.Module, sizes: UnitSizes) -> Iterator[nn.Module]:
    """The modules that are gathered on their own, inner ones before those that contain them."""
    users = _users(model)
    taken: set[int] = set()
    for module in reversed(_blocks(model, users, sizes)):
        own = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if sum(p.nbytes for p in own) >= max(sizes.smallest_bytes, 1) and _keeps_to_itself(module, own, users):
            taken.update(map(id, own))
            yield module


def _blocks(model: nn.Module, users: dict[int, set[int]], sizes: UnitSizes) -> list[nn.Module]:
    """The model's blocks, save for those within a block that need not be divided."""
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
    """Whether nothing outside of the module uses these parameters of it."""
    inside = set(map(id, module.modules()))
    return all(users[id(parameter)] <= inside for parameter in parameters)


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
