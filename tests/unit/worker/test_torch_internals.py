"""A canary: the installed torch has the private names that the worker uses, and they do what it expects."""

import ast
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import oakum_worker
from cells import each
from oakum_worker import torch_internals as internals

WORKER = Path(oakum_worker.__file__).parent
PYTHONS_OWN = {"_exit", "_current_frames", "_fields", "_replace"}
"""Private by name alone: of `os`, `sys` and named tuples."""


def test_a_version_counts_writes_in_place_through_any_view() -> None:
    tensor = torch.zeros(4)
    before = internals.tensor_version(tensor)
    tensor[:2].add_(1)
    assert internals.tensor_version(tensor) == before + 1
    assert float(tensor.sum()) == 2
    assert internals.tensor_version(tensor) == before + 1


def test_the_types_of_a_graph_are_those_of_all_its_results() -> None:
    layer, inputs = nn.Linear(3, 2).double(), torch.ones(2, 3, dtype=torch.float64)
    assert internals.float_types_of_graph(layer(inputs).sum()) == {torch.float64}
    with torch.autocast("cpu", torch.bfloat16):
        loss = layer.float()(inputs.float()).sum()
    assert internals.float_types_of_graph(loss.float()) == {torch.bfloat16, torch.float32}


def test_a_storages_address_is_that_of_all_its_views_and_of_no_other() -> None:
    tensor, other = torch.zeros(4), torch.zeros(4)
    address = internals.storage_address(tensor.untyped_storage())
    assert internals.storage_address(tensor[2:].untyped_storage()) == address
    assert internals.storage_address(other.untyped_storage()) != address


def test_many_tensors_are_multiplied_and_moved_in_place() -> None:
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    internals.multiply_in_place(tensors, 4.0)
    internals.lerp_in_place(tensors, [torch.zeros(2), torch.zeros(3)], 0.25)
    assert [tensor.tolist() for tensor in tensors] == [[3.0, 3.0], [6.0, 6.0, 6.0]]


def test_a_backward_pass_has_a_number_where_a_checkpoint_computes_again() -> None:
    seen = []

    def layer(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(internals.backward_pass_id())
        return inputs.exp()

    checkpoint(layer, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
    outside, inside = seen
    assert outside == -1
    assert inside >= 0


def test_no_mode_answers_where_torch_functions_are_disabled() -> None:
    answered = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            answered.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        with internals.DisableTorchFunction():
            torch.rand(1)
        assert not answered
        torch.rand(1)
    assert answered == [torch.rand]


def test_a_dispatch_mode_sees_what_operators_return() -> None:
    leaves = []

    class Mode(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            leaves.extend(internals.tree_leaves({"result": [result]}))
            return result

    with Mode():
        made = torch.ones(2) + 1
    assert leaves[-1] is made


def test_distributions_draw_with_these_functions() -> None:
    drawn = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            drawn.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.distributions.Gamma(torch.ones(2), torch.ones(2), validate_args=False).sample()
        torch.distributions.Dirichlet(torch.ones(2), validate_args=False).sample()
    assert {internals.STANDARD_GAMMA, internals.SAMPLE_DIRICHLET} <= set(drawn)


def test_one_compiled_graph_serves_all_batch_sizes() -> None:
    graphs = []

    def count(graph, inputs):  # type: ignore[no-untyped-def]
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda inputs: inputs * 2, backend=count)
    # A DistributedDataParallel that another test has left behind would have the graph cut for its buckets.
    with torch._dynamo.config.patch(optimize_ddp=False):
        for size in (3, 5, 7):
            inputs = torch.ones(size, 2)
            internals.mark_first_dimension_dynamic(inputs)
            assert compiled(inputs).shape == (size, 2)
    assert len(graphs) == 1


def test_a_modules_own_buffers_are_dropped() -> None:
    layer = nn.Sequential(nn.BatchNorm1d(2))
    layer.register_buffer("mine", torch.ones(1))
    internals.drop_buffers(layer)
    assert {name for name, _ in layer.named_buffers()} == {
        f"0.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_batch_normalisation_checks_its_inputs_by_the_name_that_ours_calls() -> None:
    with pytest.raises(ValueError, match="4D"):
        nn.BatchNorm2d(1)._check_input_dim(torch.ones(1))


def test_batch_normalisation_and_instance_normalisation_have_one_base() -> None:
    assert issubclass(nn.BatchNorm2d, internals.NormBase)
    assert issubclass(nn.InstanceNorm1d, internals.NormBase)
    assert not issubclass(nn.GroupNorm, internals.NormBase)


def test_a_mesh_keeps_its_groups_in_a_registry_or_nowhere() -> None:
    mesh = type("Mesh", (), {})()
    internals.forget_mesh_groups(mesh)
    mesh._pg_registry = {"group": object()}
    internals.forget_mesh_groups(mesh)
    assert mesh._pg_registry == {}


def test_a_group_of_one_sums_and_gathers() -> None:
    store = dist.HashStore()
    limit = timedelta(seconds=240)
    group = internals.new_group(store, 0, 1, connect_timeout=limit, timeout=limit, on_gpus=False)
    own = torch.arange(3.0)
    group.allreduce([own]).wait()
    gathered = torch.zeros(3)
    internals.begin_all_gather_flat(gathered, own, group).wait()
    assert group.size() == 1
    assert gathered.tolist() == [0.0, 1.0, 2.0]


@each("with_gradients", [False, True])
@each("dtype", [torch.bfloat16, torch.float16])
def test_torchs_lstm_computes_under_autocast_where_onednn_does(dtype: torch.dtype, with_gradients: bool) -> None:
    if not internals.onednn_computes(dtype, with_gradients=with_gradients):
        return  # the tests of fused layers show what is done there
    with torch.set_grad_enabled(with_gradients), torch.autocast("cpu", dtype=dtype):
        assert nn.LSTM(8, 8)(torch.zeros(3, 1, 8))[0].isfinite().all()


@each("name", ["_reduce_scatter_base", "_allgather_base", "_register_backend"])
def test_groups_have_their_private_methods(name: str) -> None:
    assert callable(getattr(dist.ProcessGroup, name))


def test_the_timeout_of_the_default_group_is_set(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        internals.set_group_timeout(timedelta(seconds=77))
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        assert backend.options._timeout == timedelta(seconds=77)
    finally:
        dist.destroy_process_group()


def test_parameters_that_fsdp_gathers_are_told_with_what_autograd_sees_of_them() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        fully_shard(model[0])
        fully_shard(model)
        rows = {id(parameter): name for name, parameter in model.named_parameters()}
        assert list(internals.gathered_parameters(model)) == []
        seen = []
        loss = model(torch.ones(1, 2)).sum()
        gathered = list(internals.gathered_parameters(model))
        for parameter, whole in gathered:
            whole.register_post_accumulate_grad_hook(lambda _, own=parameter: seen.append(rows[id(own)]))
        loss.backward()
        assert sorted(seen) == sorted(rows.values())
    finally:
        dist.destroy_process_group()


@each("path", sorted(WORKER.rglob("*.py")), ids=lambda path: str(path.relative_to(WORKER)))
def test_no_other_module_uses_a_private_name_of_torchs(path: Path) -> None:
    if path.name != "torch_internals.py":
        assert list(_private_names(ast.parse(path.read_text()))) == []


def _private_names(tree: ast.Module) -> Iterator[str]:
    """Private names imported from torch, and private attributes that the module neither defines nor sets."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and not _is_self(node.value):
            if node.attr not in own | PYTHONS_OWN:
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (f"{node.module}: {name}" for name in names if _is_private(name))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
