"""Every private name of torch that the worker uses, so that a new version of torch is checked in one place.

`tests/unit/worker/test_torch_internals.py` checks that the installed torch has each name, that the name does what
the worker expects, and that no other module of the worker uses a private name of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout as set_group_timeout
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = [
    "SAMPLE_DIRICHLET",
    "STANDARD_GAMMA",
    "BatchNorm",
    "DisableTorchFunction",
    "NormBase",
    "TorchDispatchMode",
    "backward_pass_id",
    "begin_all_gather_flat",
    "begin_reduce_scatter_flat",
    "disable_autocast",
    "drop_buffers",
    "end_loading",
    "float_types_of_graph",
    "forget_mesh_groups",
    "gathered_parameters",
    "has_compiled",
    "hear_of_ended_loaders_in_reads_alone",
    "lerp_in_place",
    "mark_first_dimension_dynamic",
    "multiply_in_place",
    "new_group",
    "onednn_computes",
    "set_group_timeout",
    "storage_address",
    "tensor_version",
    "tree_leaves",
    "tree_map",
    "wrapper_tensor",
]

DisableTorchFunction = torch._C.DisableTorchFunction
"""Context in which no `TorchFunctionMode` and no subclass answers for torch's functions."""
STANDARD_GAMMA = torch._standard_gamma
"""What `torch.distributions.Gamma` draws with."""
SAMPLE_DIRICHLET = torch._sample_dirichlet
"""What `torch.distributions.Dirichlet` draws with."""
multiply_in_place = torch._foreach_mul_
"""`multiply_in_place(tensors, factor)`: multiply each tensor by one number."""
lerp_in_place = torch._foreach_lerp_
"""`lerp_in_place(tensors, ends, weight)`: move each tensor towards its end by `weight`, from 0 to 1."""
backward_pass_id = torch._C._current_graph_task_id
"""The number of the backward pass that this thread computes, or -1 outside a backward pass."""


def hear_of_ended_loaders_in_reads_alone(iterator: Any) -> None:
    """Have a killed process of a `DataLoader`'s iterator raise an error where the iterator is asked for its next
    element, and not wherever the main thread is when the signal of the process's end arrives."""
    torch.utils.data._utils.signal_handling._remove_worker_pids(id(iterator))
    iterator._worker_pids_set = False


def end_loading(iterator: Any) -> None:
    """End the processes of a `DataLoader`'s iterator. Waits a few seconds for what they are at."""
    iterator._shutdown_workers()


def tensor_version(tensor: torch.Tensor) -> int:
    """Number of times that the tensor's memory was written in place; views of one tensor share the number."""
    return tensor._version


def gathered_parameters(model: nn.Module) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """(this rank's rows of a parameter, the whole parameter) for each parameter of a model sharded by FSDP2 that
    has been gathered so far. The whole one is a leaf of autograd and stays one object."""
    units: list[Any] = [module for module in model.modules() if hasattr(module, "_get_fsdp_state")]
    groups = [group for unit in units for group in unit._get_fsdp_state()._fsdp_param_groups]
    for parameter in (parameter for group in groups for parameter in group.fsdp_params):
        if hasattr(parameter, "_unsharded_param"):
            yield parameter.sharded_param, parameter._unsharded_param


def storage_address(storage: torch.UntypedStorage) -> int:
    """The address of the storage's C++ object: one number per storage, also for storages without memory."""
    address: int = storage._cdata
    return address


def mark_first_dimension_dynamic(tensor: torch.Tensor) -> None:
    """Let torch's compiler treat the size of the tensor's first dimension as a variable, so that other sizes need
    no new compilation."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)


def wrapper_tensor(cls: Any, shape: Any, like: torch.Tensor) -> Any:
    """A tensor of the subclass `cls` without memory, of this shape, with the type, device and `requires_grad` of
    `like`."""
    return torch.Tensor._make_wrapper_subclass(
        cls, tuple(shape), dtype=like.dtype, device=like.device, requires_grad=like.requires_grad
    )


def drop_buffers(module: nn.Module) -> None:
    """Remove the module's own buffers, but not those of its children."""
    module._buffers.clear()


def forget_mesh_groups(mesh: Any) -> None:
    """Drop a `DeviceMesh`'s references to its process groups, so that these can be freed. Does nothing for
    None."""
    getattr(mesh, "_pg_registry", {}).clear()


def new_group(
    store: dist.Store,
    rank: int,
    size: int,
    *,
    connect_timeout: timedelta,
    timeout: timedelta,
    on_gpus: bool,
) -> dist.ProcessGroup:
    """A process group that torch has no name for: gloo for tensors on CPUs and, with `on_gpus`, NCCL for others.

    Collective: gloo connects all pairs of ranks within `connect_timeout`; a collective may take `timeout`.
    Raises `RuntimeError` when a rank cannot be reached.
    """
    kinds = dist.ProcessGroup.BackendType
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, connect_timeout)
    gloo._set_default_timeout(timeout)
    group = dist.ProcessGroup(store, rank, size)
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    if on_gpus:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
        group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    return group


def onednn_computes(dtype: torch.dtype, *, with_gradients: bool) -> bool:
    """Whether torch's LSTM can run on this processor under autocast to `dtype`, bfloat16 or float16; the answer
    depends on whether torch's gradient mode is on, `with_gradients`.

    torch has oneDNN compute it. oneDNN raises where the processor lacks instructions for the type. In float16 it
    has no training on any processor. A torch built without oneDNN computes by itself: then this is true.
    """
    if not torch.backends.mkldnn.is_available():
        return True
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return not with_gradients and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def begin_all_gather_flat(gathered: torch.Tensor, own: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Collective: begin to fill `gathered`, shape (ranks * n,), with all ranks' `own`, shape (n,), by rank."""
    backend: Any = group
    work: dist.Work = backend._allgather_base(gathered, own)
    return work


def begin_reduce_scatter_flat(own: torch.Tensor, summed: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Collective, NCCL only: begin to fill `own` with this rank's part of the sum of all ranks' `summed`.

    `own` has the shape (n,), `summed` (ranks * n,).
    """
    backend: Any = group
    work: dist.Work = backend._reduce_scatter_base(own, summed)
    return work


def has_compiled() -> bool:
    """Whether a model was compiled in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["stats"]["unique_graphs"] > 0


def disable_autocast() -> None:
    """From now on, and until this process ends, have every `torch.autocast` do nothing."""
    enter = torch.autocast.__enter__

    def enter_disabled(context: torch.autocast) -> Any:
        context._enabled = False
        return enter(context)

    torch.autocast.__enter__ = enter_disabled  # type: ignore[method-assign]


def float_types_of_graph(result: torch.Tensor) -> set[torch.dtype]:
    """The types with a fraction in which a result and whatever autograd has recorded for it were computed."""
    types, visited, nodes_to_visit = {result.dtype}, set(), [result.grad_fn]
    while nodes_to_visit:
        node: Any = nodes_to_visit.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        types |= {metadata.dtype for metadata in node._input_metadata}
        nodes_to_visit += [function for function, _ in node.next_functions]
    return {dtype for dtype in types if dtype.is_floating_point}
