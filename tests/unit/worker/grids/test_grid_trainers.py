"""Whole tensor-parallel trainers whose ranks are threads: layouts, traffic, refusals and what is told of them."""

from __future__ import annotations

import contextlib
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from typer.testing import CliRunner

from cells import each
from grid_tasks import WIDTH, build_words_task
from oakum_worker.errors import TaskError
from oakum_worker.parallel.blocks import Block
from oakum_worker.parallel.grids.costs import Product, traffic
from oakum_worker.parallel.grids.engine import GridEngine
from oakum_worker.parallel.grids.layouts import GridChoices, grids_up_to, predict_grid
from oakum_worker.parallel.grids.measuring import measure_products
from oakum_worker.parallel.grids.parts import GridParts
from oakum_worker.parallel.grids.state import GridState
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.offload import OffloadedAdam
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.tensor.computing import computing
from oakum_worker.parallel.tensor.conversion import take
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.parallel.tensor.wires import Wires
from oakum_worker.profiling import layout_command  # noqa: F401  adds its command to the profiles'
from oakum_worker.profiling.command import profile_app
from oakum_worker.profiling.grid_profile import name_for_people
from oakum_worker.profiling.live_memory import LiveMemory
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_loops import train_in_turns
from pipeline_ranks import build_transformer
from pipeline_tasks import Sentences
from tensor_ranks import plan, simulate
from training_ranks import build_spec

CUBE = {"parallel": {"tensor": {"cube": 2}}}


def build_calm_task(**options: Any) -> Task:
    """Without draws, which threads share."""
    return build_words_task(dropout=0.0, **options)


@pytest.mark.parametrize(
    ("options", "num_ranks", "replicas"),
    [
        ({"line": 2}, 5, 2),
        ({"square": 2}, 4, 1),
        ({"cube": 2}, 8, 1),
        ({"shards": 2}, 5, 2),
        pytest.param({"line": 2}, 2, 1, marks=pytest.mark.soak),
        pytest.param({"cube": 2}, 17, 2, marks=pytest.mark.soak),
    ],
)
def test_grids_their_replicas_and_spare_ranks_have_the_losses_of_one_process(
    options: dict[str, int], num_ranks: int, replicas: int
) -> None:
    """Through an epoch's last batch of 5 samples, with clipped gradients and an average of the weights."""
    others: dict[str, Any] = {"clip_grad_norm": 0.5, "ema": {"decay": 0.9}, "global_batch": 24}
    alone = TrainingLoop(build_calm_task(), build_spec(**others))
    expected = [alone.step().loss for _ in range(3)]
    spec = build_spec(parallel={"tensor": options}, **others)
    losses, loops = train_in_turns(build_calm_task, spec, num_ranks, 3)
    assert losses == pytest.approx(expected, rel=1e-12)
    states = [loop.assembly.state for loop in loops]
    assert isinstance(states[0], GridState)
    assert states[0].arrangement.num_replicas == replicas
    held = [sum(p.numel() for p in state.parameters) for state in states if isinstance(state, GridState)]
    size = states[0].arrangement.grid.num_ranks
    assert held[replicas * size :] == [0] * (num_ranks - replicas * size)
    whole = sum(p.numel() for p in alone.task.model.parameters())
    assert max(held) < whole / size + sum(p.numel() for p in alone.task.model.parameters() if p.ndim == 1)


class Rows(Dataset):
    """Random rows."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index), dtype=torch.float64)


def build_products_task() -> Task:
    """Six linear layers and nothing else."""
    torch.manual_seed(1)
    widths = [WIDTH, 2 * WIDTH] * 3 + [WIDTH]
    layers = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)]
    model = nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Task(model=model, dataset=Rows(), loss=lambda m, batch: m(batch).square().mean(), optimizer=optimizer)


@each("keep", [False, True])
@each("options", [{"cube": 2}, {"square": 2}, {"line": 2}, {"shards": 2}])
def test_ranks_receive_what_was_predicted(options: dict[str, int], keep: bool) -> None:
    """With the loss, a single number."""
    spec = build_spec(micro_batch=8, parallel={"tensor": {**options, "keep_gathered": keep}})
    sizes = {"cube": 8, "square": 4, "line": 2, "shards": 2}
    (name,) = options
    _, loops = train_in_turns(build_products_task, spec, sizes[name], 2)
    engine, state = loops[-1].assembly.engine, loops[-1].assembly.state
    assert isinstance(engine, GridEngine)
    assert isinstance(state, GridState)
    grid = state.arrangement.grid
    products = [
        Product(1, layer.in_features, layer.out_features, number > 0)
        for number, layer in enumerate(build_products_task().model.children())
    ]
    predicted = sum(traffic(grid, p, n, 8, keep_gathered=keep).elements for n, p in enumerate(products))
    counted = engine.received / 2
    assert counted == pytest.approx(predicted, abs=4)


@each("keep", [False, True])
@each("grid", [Grid("1d", 2), Grid("2d", 2), Grid("3d", 2), Grid("shards", 2)])
def test_a_ranks_tensors_take_the_memory_that_was_predicted(grid: Grid, keep: bool) -> None:
    """Within 25 %, for a model of which activations take more than weights."""
    task, batch = build_products_task(), torch.ones(64, WIDTH, dtype=torch.float64)
    conversion = plan(task.model, grid, task.loss, batch, len(batch))

    def peak_bytes(wires: Wires) -> int:
        assert wires.rank is not None
        own = conversion.local(task.model, wires.rank, task.model.state_dict())
        with LiveMemory() as memory:
            memory.count(own.parameters())
            with computing(wires, len(batch), keep_gathered=keep) as share:
                value = task.loss(own, share(batch))
            value.backward()
        return memory.peak_bytes

    profile = measure_products(task, len(batch), contextlib.nullcontext)
    predicted = predict_grid(grid, 1, 1, profile, LinkCosts(), GridChoices(len(batch), keep_gathered=keep))
    assert max(simulate(grid, peak_bytes)) == pytest.approx(predicted.most_bytes, rel=0.25)


def test_parts_of_a_grid_are_what_ranks_have_in_common() -> None:
    left, right, whole = Block.of([range(2)]), Block.of([range(2, 4)]), Block.of([range(4)])
    parts = GridParts("1d-2", 2, {"matrix": [left, right], "bias": [whole, whole]})
    common = parts.common()
    assert [set(parts.of(rank)) - {common} for rank in range(2)] == [{parts.of(0)[0]}, {parts.of(1)[1]}]
    assert parts.block("bias", common.number) == whole
    assert parts.block("matrix", common.number) is None
    assert {parts.block("matrix", part.number) for rank in range(2) for part in parts.of(rank)} == {
        left,
        right,
        None,
    }


def test_ranks_of_a_grid_are_consecutive_and_the_rest_is_spare() -> None:
    arrangement = Arrangement(11, 2, grid=Grid("2d", 2))
    assert [arrangement.ranks_of(replica) for replica in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert arrangement.holders_of(0, 1) == [1, 5]
    assert [rank for rank in range(11) if arrangement.seat(rank) is None] == [8, 9, 10]


@each("grid", [Grid("1d", 12), Grid("2d", 3), Grid("3d", 4)])
def test_a_grids_name_gives_the_grid_back(grid: Grid) -> None:
    assert Grid.named(grid.name) == grid


def test_no_grid_has_another_name() -> None:
    with pytest.raises(ValueError, match="no grid is named '4d-2': expected a name such as 3d-2"):
        Grid.named("4d-2")


def test_an_optimizer_that_takes_whole_parameters_is_refused() -> None:
    task = build_words_task()
    task.optimizer = OffloadedAdam(task.model.parameters())
    with pytest.raises(TaskError, match=r"OffloadedAdam, which takes whole parameters: use\s+torch.optim.Adam"):
        TrainingLoop(task, build_spec(**CUBE))


def test_a_loss_that_compares_samples_is_refused() -> None:
    task = build_words_task()
    task.gathers = True
    with pytest.raises(TaskError, match=r"parallel\.tensor"):
        TrainingLoop(task, build_spec(**CUBE))


def test_a_model_that_does_not_go_onto_the_grid_is_refused_by_name() -> None:
    task = build_words_task()
    task.loss = lambda model, batch: torch.linalg.svdvals(model(batch[:, :-1])).mean()
    with pytest.raises(TaskError, match="svdvals"):
        TrainingLoop(task, build_spec(**CUBE))


def test_an_optimizer_whose_state_is_shaped_otherwise_is_refused_where_matrices_are_divided() -> None:
    def build() -> Task:
        task = build_calm_task()
        task.optimizer = torch.optim.Adafactor(task.model.parameters())
        task.scheduler = None
        return task

    _, loops = train_in_turns(build, build_spec(parallel={"tensor": {"line": 2}}), 2, 1)
    state = loops[0].assembly.state
    assert state is not None
    with pytest.raises(
        TaskError, match=r"is not shaped like this rank's block of .*: use an optimizer whose moments"
    ):
        state.capture({})


SPEC = """
name: words
entrypoint: grid_tasks:build_words_task
workdir: {folder}
global_batch: 16
epochs: 1
max_nodes: 9
parallel: {{tensor: {{}}}}
"""


def test_the_profile_lists_the_fastest_grid_for_each_number_of_nodes(tmp_path: Path) -> None:
    spec = tmp_path / "words.yaml"
    spec.write_text(SPEC.format(folder=Path(__file__).parents[3] / "support"))
    command = ["layout", str(spec), "--memory", "200KB", "--latency-us", "1", "--bandwidth", "100GB"]
    shown = CliRunner().invoke(profile_app, [*command, "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    assert [row["nodes"] for row in found["layouts"]] == list(range(1, 10))
    assert not found["layouts"][0]["fits"]
    assert found["layouts"][7]["fits"]
    assert found["layouts"][7]["ranks_per_grid"] > 1
    assert found["products"] == 9
    told = {row["grid"] for row in found["grids"]} | {grid for grid, _ in found["refused"]}
    assert told == {name_for_people(grid) for grid in grids_up_to(9)}
    names = [parameter["name"] for parameter in found["converted"]]
    assert names
    assert len(set(names)) == len(names)
    table, grids, text = CliRunner().invoke(profile_app, command).output.split("\n\n", 2)
    assert len(table.splitlines()) == 1 + 9
    assert "does not fit" in table.splitlines()[1]
    assert "cube of 2" in grids
    # On how the grid that these times make the fastest divides them; other times may make it another one.
    _, _, parameters = text.rpartition(":\n")
    listed = parameters.splitlines()
    assert 0 < len(listed) < len(names), "alike parameters share a line"
    assert any(" parameters)" in line for line in listed)


def build_tied_task(num_layers: int) -> Task:
    """The pipelines' transformer, whose head is tied to its embedding, without draws."""
    chain = build_transformer(num_layers)
    assert isinstance(chain.layers, nn.ModuleList)
    optimizer = torch.optim.AdamW(chain.layers.parameters(), lr=0.01)
    return Task(model=chain.layers, dataset=Sentences(), loss=chain, optimizer=optimizer, chain=chain)


@pytest.mark.parametrize(
    ("options", "num_ranks", "num_layers", "num_steps"),
    [
        pytest.param({"cube": 2}, 8, 2, 20, marks=pytest.mark.soak),
        pytest.param({"line": 2}, 2, 8, 20, marks=pytest.mark.soak),
        ({"square": 2}, 4, 1, 4),
        pytest.param({"square": 2}, 4, 2, 20, marks=pytest.mark.soak),
        pytest.param({"square": 2}, 4, 8, 20, marks=pytest.mark.soak),
        pytest.param({"cube": 2}, 8, 8, 20, marks=pytest.mark.soak),
        pytest.param({"cube": 2}, 16, 8, 20, marks=pytest.mark.soak),
    ],
)
def test_the_pipelines_transformer_has_the_weights_of_one_process(
    options: dict[str, int], num_ranks: int, num_layers: int, num_steps: int
) -> None:
    """With one of its eight blocks, which are alike; `make soak` has all eight, and more steps."""
    build = partial(build_tied_task, num_layers)
    alone = TrainingLoop(build(), build_spec(epochs=4))
    expected = [alone.step().loss for _ in range(num_steps)]
    spec = build_spec(epochs=4, parallel={"tensor": options})
    losses, loops = train_in_turns(build, spec, num_ranks, num_steps)
    assert losses == pytest.approx(expected, rel=1e-9)
    whole = dict(alone.task.model.named_parameters())
    for rank, loop in enumerate(loops):
        state = loop.assembly.state
        assert isinstance(state, GridState)
        seat = state.arrangement.seat(rank)
        assert seat is not None
        for name, parameter in loop.task.model.named_parameters():
            expected_block = take(whole[name].detach(), state.blocks(state.arrangement.grid, name)[seat.position])
            assert torch.allclose(parameter.detach(), expected_block, rtol=0, atol=1e-9), name


def test_a_rank_alone_predicts_the_curve_of_other_grids_in_mid_generation() -> None:
    """It follows the model onto grids that are not there, without a word to the ranks of its own."""
    _, loops = train_in_turns(build_calm_task, build_spec(**CUBE), 8, 1)
    before = [parameter.detach().clone() for parameter in loops[0].task.model.parameters()]
    points = loops[0].assembly.engine.predicted_curve
    assert points[0][0] == 1
    assert all(a < b and r < s for (a, r), (b, s) in itertools.pairwise(points))
    assert all(map(torch.equal, loops[0].task.model.parameters(), before))
    states = [loop.assembly.state for loop in (loops[0], TrainingLoop(build_calm_task(), build_spec(**CUBE)))]
    blocks = [state.blocks(Grid("2d", 2), "head.weight") for state in states if isinstance(state, GridState)]
    assert blocks[0] == blocks[1]
