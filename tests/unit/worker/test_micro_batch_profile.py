"""What micro-batches take on this machine: measured within limits, remembered, and shown."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate
from typer.testing import CliRunner

from cells import each
from oakum_worker.__main__ import app
from oakum_worker.errors import SpecError, TaskError
from oakum_worker.profiling import micro_batch_probe, micro_batch_profile
from oakum_worker.profiling.command import as_text
from oakum_worker.profiling.live_memory import LiveMemory, MemoryLimitError
from oakum_worker.profiling.micro_batch import MicroBatchCandidate
from oakum_worker.profiling.micro_batch_probe import Footprint, Probe
from oakum_worker.profiling.micro_batch_profile import MicroBatchProfile, profile_micro_batch
from oakum_worker.profiling.options import parse_bytes
from oakum_worker.spec import read_spec
from oakum_worker.task import Task, load_task
from training_ranks import build_spec, build_task, mean_squared_error

WIDTH, DEPTH = 256, 4
FLOAT = 4

TASK_MODULE = """
import torch
from torch import nn
from torch.nn.functional import mse_loss
from oakum_worker.task import Task

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        print("computed", len(x), flush=True)
        return self.layer(x).tanh()

def task(width=64, fails_at=10**9):
    model = nn.Sequential(Block(width), Block(width))
    data = torch.utils.data.TensorDataset(torch.ones(50, width))
    def loss(model, batch):
        if len(batch[0]) >= fails_at:
            raise ValueError("too many for me")
        return model(batch[0]).square().mean()
    return Task(model=model, dataset=data, loss=loss, optimizer=torch.optim.Adam(model.parameters()))
"""


def wide_task() -> Task:
    """A task of which each sample keeps `DEPTH` activations of `WIDTH` numbers, and needs as many gradients in
    its backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)])
    dataset = [(torch.randn(WIDTH), torch.randn(WIDTH)) for _ in range(8)]
    optimizer = torch.optim.Adam(model.parameters())
    return Task(model=model, dataset=dataset, loss=mean_squared_error, optimizer=optimizer)


NUM_WEIGHTS = DEPTH * (WIDTH * WIDTH + WIDTH)


def test_tensors_are_counted_until_they_are_freed() -> None:
    with LiveMemory() as memory:
        memory.count([torch.zeros(100, dtype=torch.uint8)])
        ones = torch.ones(1000, dtype=torch.uint8)
        views = ones[:10], ones.view(10, 100)
        more = ones + 1
        assert memory.live_bytes == 2000
        del ones, views
        assert memory.live_bytes == 1000
        del more
    assert (memory.live_bytes, memory.peak_bytes) == (0, 2000)


def test_the_operation_that_passes_the_limit_raises() -> None:
    made = []
    with pytest.raises(MemoryLimitError, match="are more than 2500"), LiveMemory(2500):
        made += [torch.ones(1000, dtype=torch.uint8) for _ in range(9)]
    assert not made


def test_weights_gradients_and_moments_are_the_static_part() -> None:
    footprint = Probe(wide_task(), build_spec(), 1 << 30).footprint(1)
    assert footprint is not None
    assert footprint.static_bytes == pytest.approx(4 * FLOAT * NUM_WEIGHTS, rel=1e-3)


def test_the_working_part_grows_with_the_samples_and_holds_their_activations() -> None:
    probe = Probe(wide_task(), build_spec(), 1 << 30)
    working = [found.working_bytes for size in (512, 1024, 2048) if (found := probe.footprint(size)) is not None]
    grown = (working[1] - working[0]) / 512, (working[2] - working[1]) / 1024
    assert grown[0] == pytest.approx(grown[1], rel=0.01)
    # Inputs, targets, each tanh's output, and what is on its way back; linear layers keep no more.
    assert DEPTH + 2 <= grown[0] / (FLOAT * WIDTH) <= 2 * DEPTH + 4
    # The gradients of the micro-batch before are there all the while, which the static part has counted.
    assert working[2] - 2048 * grown[1] == pytest.approx(0, abs=0.01 * FLOAT * NUM_WEIGHTS)


def test_a_probe_ends_where_the_limit_is_passed_and_leaves_the_device_usable() -> None:
    limit = 6 * FLOAT * NUM_WEIGHTS + FLOAT * WIDTH * 100
    probe = Probe(wide_task(), build_spec(), limit)
    assert probe.footprint(100_000) is None
    found = probe.footprint(4)
    assert found is not None
    assert sum(found) <= limit
    assert probe.footprint(100_000) is None
    assert probe.num_probes == 2  # what was measured once is known


def test_a_batch_that_cannot_be_collated_for_lack_of_memory_does_not_fit() -> None:
    """Samples that are on a GPU are collated there, and may take all of its memory before a step begins."""

    def collate(samples: list[Any]) -> Any:
        if len(samples) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return default_collate(samples)

    probe = Probe(dataclasses.replace(wide_task(), collate=collate), build_spec(), limit_bytes=1 << 30)
    assert probe.footprint(17) is None
    assert probe.footprint(16) is not None


def test_samples_that_are_parts_of_a_whole_data_set_count_for_themselves() -> None:
    task = wide_task()
    task.dataset = TensorDataset(torch.zeros(20_000, WIDTH), torch.zeros(20_000, WIDTH))
    found = Probe(task, build_spec(), 1 << 30).footprint(1)
    assert found is not None
    assert found.working_bytes < 20_000 * FLOAT * WIDTH


def test_stages_share_what_is_static_and_hold_what_is_in_flight() -> None:
    assert Footprint(1000, 60).at_stage(4, 3) == (1000 + 180) // 4


def test_batch_norm_is_given_two_samples_at_least() -> None:
    assert Probe(build_task(nn.BatchNorm1d(8)), build_spec(), 1 << 30).smallest == 2
    spec = build_spec(parallel={"batch_norm": "group"})
    assert Probe(build_task(nn.BatchNorm1d(8)), spec, 1 << 30).smallest == 1


@pytest.fixture
def spec_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Spec file of a task whose module prints how many samples it computes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / f"{tmp_path.name.replace('-', '_')}.py").write_text(TASK_MODULE)
    spec = {
        "name": "blocks",
        "entrypoint": f"{tmp_path.name.replace('-', '_')}:task",
        "global_batch": 24,
        "epochs": 1,
        "min_nodes": 2,
    }
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    return path


def run(*arguments: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["profile", "micro-batch", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def computed(output: str) -> set[int]:
    return {int(line.split()[1]) for line in output.splitlines() if line.startswith("computed")}


def test_the_command_measures_what_fits_and_remembers_it(spec_file: Path) -> None:
    code, output, _ = run(spec_file, "--json")
    document = json.loads(output[output.index("{") :])
    assert code == 0
    assert [one["micro_batch"] for one in document["candidates"]] == [
        1,
        2,
        3,
        4,
        6,
        12,
    ]  # half of 24, on two nodes
    assert document["best"] == max(document["candidates"], key=lambda one: one["samples_per_s"])
    assert computed(output) == {1, 2, 3, 4, 6, 12}
    again = run(spec_file, "--json")[1]
    assert not computed(again)
    assert json.loads(again) == document | {"remembered": True}
    assert computed(run(spec_file, "--json", "--fresh")[1])


@pytest.mark.parametrize("change", ["limit", "stages", "batch", "width", "code", "precision", "device", "torch"])
def test_what_depends_on_something_else_is_measured_again(
    spec_file: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    run(spec_file)
    document = json.loads(spec_file.read_text())
    options: list[Any] = []
    match change:
        case "limit":
            options = ["--memory", "1GB"]
        case "stages":
            options = ["--pipeline-stages", 2]
        case "batch":
            options = ["--batch", 6]
        case "width":
            document["arguments"] = {"width": 32}
        case "device":
            monkeypatch.setattr(micro_batch_profile, "device_name", lambda device: "another")
        case "torch":
            monkeypatch.setattr(torch, "__version__", "1.0")
        case "precision":
            document["precision"] = "bfloat16"
        case "code":
            other = spec_file.parent / "other_blocks.py"
            other.write_text(TASK_MODULE.replace("tanh", "relu"))
            document["entrypoint"] = "other_blocks:task"
    spec_file.write_text(json.dumps(document))
    assert computed(run(spec_file, *options)[1])


def test_a_limit_keeps_large_micro_batches_out(spec_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = Probe(load_task(read_spec(spec_file)), build_spec(), 1 << 30)
    takes = {size: sum(free.footprint(size) or ()) for size in (12, 48, 49)}
    assert takes[12] < takes[48] < takes[49]
    timed: list[int] = []
    monkeypatch.setattr(Probe, "seconds", lambda self, size: timed.append(size) or 0.01)
    code, output, _ = run(spec_file, "--json", "--largest", "--memory", takes[48], "--batch", 96)
    document = json.loads(output[output.index("{") :])
    assert code == 0
    assert timed == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    assert [one["micro_batch"] for one in document["candidates"]] == timed
    assert document["peak_bytes"]["48"] == takes[48]
    assert document["largest_at_once"] == 48
    assert document["largest_batch"] == 1 << 16  # one micro-batch after the other
    code, _, problem = run(spec_file, "--memory", "100KiB")
    assert code == 2
    assert "not even a micro-batch of 1 fits into the memory: allow for more" in problem


def test_the_largest_batch_of_stages_is_what_they_hold_at_once(spec_file: Path) -> None:
    footprint = Probe(load_task(read_spec(spec_file)), build_spec(), 1 << 30).footprint(1)
    assert footprint is not None
    limit = footprint.at_stage(8, 3)
    options = "--json", "--largest", "--pipeline-stages", 8, "--memory", limit, "--batch"
    _, output, _ = run(spec_file, *options, 3)
    assert json.loads(output[output.index("{") :])["largest_batch"] == 3
    assert "not even a micro-batch of 1 fits" in run(spec_file, *options, 4)[2]


class TimedLayer(nn.Module):
    """Takes what `milliseconds` says of as many samples, by a clock of its own."""

    def __init__(self, milliseconds: Callable[[int], float]) -> None:
        super().__init__()
        self.milliseconds = milliseconds
        self.passed_ms = 0.0

    def perf_counter(self) -> float:
        return self.passed_ms / 1000

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passed_ms += self.milliseconds(len(x))
        return x


def test_the_best_micro_batch_is_faster_than_the_whole_share_at_once(
    spec_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a layer that takes longer for each sample from 5 at once on, as where caches overflow."""
    layer = TimedLayer(lambda num_samples: 2 + 2 * max(0, num_samples - 4))
    task = build_task(layer)
    monkeypatch.setattr(micro_batch_probe, "time", layer)
    monkeypatch.setattr(micro_batch_profile, "load_task", lambda spec: task)
    found = profile_micro_batch(read_spec(spec_file))

    def step_s(size: int) -> float:
        begin_s = layer.perf_counter()
        for start in range(0, found.batch, size):
            task.loss(task.model, task.read(range(start, start + size)))
        return layer.perf_counter() - begin_s

    assert found.best.micro_batch == 4
    assert step_s(4) == pytest.approx(step_s(found.batch) / 3)


def test_a_micro_batch_is_measured_no_shorter_than_it_takes() -> None:
    layer = TimedLayer(lambda num_samples: 0.0)
    layer.register_forward_hook(lambda *_: time.sleep(0.002))
    assert Probe(build_task(layer), build_spec(), 1 << 30).seconds(4) >= 0.002


def test_a_stage_holds_as_many_micro_batches_as_there_are_stages(spec_file: Path) -> None:
    _, output, _ = run(spec_file, "--json", "--pipeline-stages", 4)
    peaks = {int(size): peak for size, peak in json.loads(output[output.index("{") :])["peak_bytes"].items()}
    probe = Probe(load_task(read_spec(spec_file)), build_spec(), 1 << 30)
    for size, peak in peaks.items():
        found = probe.footprint(size)
        assert found is not None
        assert peak == found.at_stage(4, min(4, 12 // size))


def test_a_task_that_fails_is_named(spec_file: Path) -> None:
    document = json.loads(spec_file.read_text()) | {"arguments": {"fails_at": 3}}
    spec_file.write_text(json.dumps(document))
    code, _, problem = run(spec_file)
    assert code == 2
    assert "a micro-batch of" in problem
    assert "ValueError: too many for me" in problem


def test_a_broken_cache_is_measured_over_and_one_that_cannot_be_written_is_done_without(
    spec_file: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "oakum" / "micro-batch.json"
    cache.parent.mkdir(parents=True)
    cache.write_text('{"half')
    assert run(spec_file)[0] == 0
    entries = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: {"batch": 1} for key in entries}))
    assert computed(run(spec_file)[1])
    assert list(cache.parent.iterdir()) == [cache]
    cache.unlink()
    cache.parent.rmdir()
    cache.parent.write_text("a file in the way")
    assert run(spec_file)[0] == 0


def test_a_run_that_is_interrupted_leaves_what_was_remembered(
    spec_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(spec_file)
    cache = tmp_path / "cache" / "oakum" / "micro-batch.json"
    before = cache.read_text()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Probe, "seconds", interrupt)
    assert run(spec_file, "--batch", 6)[0] == 130
    assert cache.read_text() == before


@each(
    ("text", "expected"),
    [("2GiB", 2**31), ("500MB", 500_000_000), ("1.5k", 1500), ("4096", 4096), ("1 TiB", 2**40), ("7b", 7)],
)
def test_amounts_of_memory_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@each("text", ["", "two", "-1", "0", "5 GiBs", "1e9"])
def test_other_amounts_are_explained(text: str) -> None:
    with pytest.raises(SpecError, match="is not a number of bytes: give one such as 2GiB"):
        parse_bytes(text)


def test_the_table_shows_what_was_measured_and_what_was_too_large() -> None:
    fast = MicroBatchCandidate(4, 2, 0.5, 16.0)
    found = MicroBatchProfile(
        batch=8,
        stages=2,
        limit_bytes=3 << 20,
        device="cpu",
        best=fast,
        candidates=(MicroBatchCandidate(2, 4, 1.0, 8.0), fast),
        peak_bytes={4: 2 << 20, 8: 4 << 20},
        largest_at_once=5,
        largest_batch=3000,
        num_probes=2,
    )
    assert as_text(found).splitlines() == [
        "micro_batch: 4  (2 of them make 8 samples, at 16 samples/s)",
        "",
        "micro-batch   number   peak memory     samples/s",
        "          2        4                           8",
        "          4        2       2.0 MiB            16  *",
        "          8        1       4.0 MiB     too large",
        "",
        "on cpu, within 3 MiB for each of 2 equal stages",
        "5 samples fit at once",
        "batches of up to 3,000 samples can be trained in micro-batches",
    ]
    assert as_text(dataclasses.replace(found, remembered=True)).endswith("--fresh measures again")


def test_a_model_that_does_not_fit_at_all_is_a_task_error(spec_file: Path) -> None:
    with pytest.raises(TaskError, match="not even a micro-batch of 1 fits"):
        profile_micro_batch(read_spec(spec_file), limit_bytes=1000)
