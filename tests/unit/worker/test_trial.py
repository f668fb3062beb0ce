"""What a try finds, told by the events that it makes: typical mistakes, each with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.profiling.micro_batch_probe import Probe
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task
from oakum_worker.trying import memory_need as trial_memory
from oakum_worker.trying import sample_sweep
from oakum_worker.trying.memory_need import MemoryNeed, memory_need
from oakum_worker.trying.trial import try_out

TASKS = """
import math, warnings
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from oakum_worker.chain import Chain
from oakum_worker.task import Task

class Data:
    def __init__(self, n=300, bad=None, nan=False, ragged=None):
        self.n, self.bad, self.nan, self.ragged = n, bad, nan, ragged
    def __len__(self): return self.n
    def __getitem__(self, i):
        if not 0 <= i < self.n: raise IndexError(i)
        if i == self.bad: raise ValueError("cannot decode")
        width = 9 if i == self.ragged else 8
        return torch.full((width,), math.nan if self.nan else i / self.n), i % 3

class Stream:
    def __init__(self, gives): self.gives = gives
    def __len__(self): return 50
    def samples(self, epoch, start):
        return ((torch.zeros(8), 0) for _ in range(start, self.gives))

def cross(model, batch): return F.cross_entropy(model(batch[0]), batch[1])

def build(data=None, loss=cross, width=8, model=None, **more):
    model = model or nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 3))
    optimizer = torch.optim.Adam(model.parameters())
    return Task(model=model, dataset=data or Data(), loss=loss, optimizer=optimizer, **more)

def good(width=8): return build(width=width)
def loader(): return build(DataLoader(Data(), 4))
def no_mean(): return build(loss=lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"))
def summed(): return build(loss=lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="sum"))
def number(): return build(loss=lambda m, b: cross(m, b).item())
def shapes(): return build(loss=lambda m, b: cross(m, (b[0].view(-1, 4), b[1])))
def raises(k): return build(Data(bad=k))
def nan_data(): return build(Data(nan=True))
def nan_loss(): return build(loss=lambda m, b: cross(m, b) * math.inf * 0)
def nan_weights():
    task = build()
    nn.init.constant_(task.model[0].weight, math.nan)
    return task
def steep(): return build(loss=lambda m, b: cross(m, b) + (m[0].weight * 0).sum().sqrt())
def ragged(k): return build(Data(ragged=k))
def early(gives): return build(Stream(gives))
def evaluation(): return build(evaluate=lambda model: {"accuracy": 1 / 0})
class Odd:
    def state_dict(self): return {"x": object()}
    def load_state_dict(self, state): pass

def unsaved(): return build(extra_state={"odd": Odd()})
def hooked(hook): return build(**{hook: lambda model, progress: 1 / 0})
def hoarding():
    torch.zeros(2**50)
    return build()
def unused():
    model = nn.ModuleDict({"used": nn.Linear(8, 3), "idle": nn.Linear(2, 2)})
    return build(model=model, loss=lambda m, b: F.cross_entropy(m["used"](b[0]), b[1]))
def keeping():
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
    return build(model=model, loss=lambda _, batch: cross(model, batch))
def chained():
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
    chain = Chain(model, lambda batch: batch[0], lambda output, batch: F.cross_entropy(output, batch[1]))
    return build(model=model, loss=chain, chain=chain)
def elsewhere():
    other = nn.Linear(8, 3)
    return build(loss=lambda _, batch: cross(other, batch))
def left_out():
    task = build()
    task.optimizer = torch.optim.SGD(task.model[0].parameters(), lr=0.1)
    return task
def warns():
    warnings.warn("the cache is cold", stacklevel=1)
    return build()
def wide(): return build(model=nn.Sequential(nn.Linear(8, 4096), nn.Tanh(), nn.Linear(4096, 3)))
"""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "tried_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def spec_of(folder: Path, function: str, **changes: Any) -> TrainerSpec:
    document = {"name": "t", "entrypoint": f"tried_tasks:{function}", "global_batch": 8, "epochs": 2}
    return TrainerSpec.model_validate({**document, "workdir": str(folder), **changes})


def events_of(spec: TrainerSpec) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    passed = try_out(spec, events.append)
    assert passed == (events[-1]["state"] != "failed")
    return events


def failure(spec: TrainerSpec) -> tuple[str, str]:
    """(check that failed, its message) of a trial that fails."""
    last = events_of(spec)[-1]
    assert last["state"] == "failed"
    return last["check"], last["message"]


def facts_of(spec: TrainerSpec) -> dict[str, Any]:
    (told,) = (event["facts"] for event in events_of(spec) if event["state"] == "facts")
    assert isinstance(told, dict)
    return told


def test_what_would_train_passes_every_check(folder: Path) -> None:
    events = events_of(spec_of(folder, "good", arguments={"width": 16}))
    done = {event["check"]: event["detail"] for event in events if event["state"] == "done"}
    assert list(done) == [
        "importing tried_tasks",
        "building the task",
        "reading the first batch",
        "computing loss and gradients of two samples",
        "rehearsing",
        "estimating memory",
        "reading more samples",
        "setting up the trainer",
    ]
    assert done["building the task"] == "195 parameters, 300 samples"
    assert done["reading more samples"] == "300 of 300 read"
    assert done["setting up the trainer"] == "76 steps"


def test_the_facts_tell_how_much_there_is_to_do(folder: Path) -> None:
    facts = facts_of(spec_of(folder, "good"))
    assert (facts["num_samples"], facts["total_samples"]) == (300, 600)
    assert (facts["remarks"], facts["memory_complaint"]) == ([], None)


COMPUTING = "computing loss and gradients of two samples"
SWEEP = "reading more samples"
TAKING = "taking up the state to begin from"


@each(
    ("function", "arguments", "check", "said"),
    [
        ("gone", {}, "importing tried_tasks", "has no 'gone'; it has: "),
        ("good", {"widht": 3}, "building the task", "got an unexpected keyword argument 'widht'"),
        ("loader", {}, "building the task", "the data set is a DataLoader: give the data set in it"),
        ("no_mean", {}, COMPUTING, "the loss has shape (2,) and requires_grad=True: return the mean"),
        ("number", {}, COMPUTING, "the loss is a float: return the tensor, without `.item()`"),
        ("shapes", {}, COMPUTING, "of the first 2 samples raised RuntimeError: mat1 and mat2 shapes"),
        ("raises", {"k": 0}, "reading the first batch", "reading sample 0 of the data set (Data, 300 samples)"),
        (
            "raises",
            {"k": 299},
            SWEEP,
            "reading sample 299 of the data set (Data, 300 samples) raised ValueError",
        ),
        (
            "raises",
            {"k": 137},
            SWEEP,
            "reading sample 137 of the data set (Data, 300 samples) raised ValueError",
        ),
        (
            "raises",
            {"k": 3},
            "estimating memory",
            "reading sample 3 of the data set (Data, 300 samples) raised ValueError: cannot decode (",
        ),
        ("ragged", {"k": 3}, "estimating memory", "collating the samples 0, 1, 2 and "),
        ("hooked", {"hook": "on_epoch_start"}, COMPUTING, "on_epoch_start raised ZeroDivisionError: division by"),
        ("hooked", {"hook": "on_step_start"}, COMPUTING, "on_step_start raised ZeroDivisionError: division by"),
        ("hooked", {"hook": "on_step_end"}, "calling on_step_end", "on_step_end raised ZeroDivisionError: div"),
        ("hoarding", {}, "building the task", "out of memory while building the task: RuntimeError: "),
        ("hoarding", {}, "building the task", ". To need less memory: lower micro_batch (not set; "),
        ("ragged", {"k": 41}, SWEEP, "give samples of one shape, or the task a `collate` of its own"),
        ("summed", {}, "rehearsing", "mean"),
        ("nan_data", {}, COMPUTING, "is nan, before any step: these samples themselves hold values that are not"),
        ("nan_loss", {}, COMPUTING, "is nan, before any step: look for the log or root of 0"),
        ("nan_weights", {}, COMPUTING, "before any step: 0.weight is not finite as it was built"),
        ("steep", {}, COMPUTING, "the loss is finite and the gradient of 0.weight is not, before any step"),
        ("early", {"gives": 1}, "reading the first batch", "has 50 samples, but its samples(0, 0) ends after 1"),
        ("early", {"gives": 20}, SWEEP, "(Stream) has 50 samples, but its samples(0, 0) ends after 20"),
        ("evaluation", {}, "evaluating", "evaluate raised ZeroDivisionError: division by zero ("),
        ("unsaved", {}, "rehearsing", "the task's state cannot be saved: "),
    ],
)
def test_a_mistake_is_told_with_what_to_do(
    folder: Path, function: str, arguments: dict[str, Any], check: str, said: str
) -> None:
    at, message = failure(spec_of(folder, function, arguments=arguments))
    assert at == check
    assert said in message


def test_the_state_to_begin_from_is_taken_up_and_has_to_fit(folder: Path, tmp_path: Path) -> None:
    spec = spec_of(folder, "good", arguments={"width": 16})
    state = TrainingLoop(load_task(spec), spec).state.state_dict()
    DurableCheckpoints(tmp_path, keep=1).save(state, 0)
    events: list[dict[str, Any]] = []
    assert try_out(spec, events.append, tmp_path)
    assert {"check": TAKING, "state": "done", "detail": "step 0"}.items() <= events[-2].items()
    assert events[-1]["facts"]["remarks"] == []
    for where, width, said in (
        (tmp_path, 8, "the state does not fit the task ("),
        (folder, 16, "there is no whole"),
    ):
        assert not try_out(spec_of(folder, "good", arguments={"width": width}), events.append, where)
        assert events[-1]["check"] == TAKING
        assert events[-1]["message"].startswith(said)


def test_the_users_own_line_is_named_and_not_torchs(folder: Path) -> None:
    _, message = failure(spec_of(folder, "shapes"))
    line = TASKS.splitlines().index(next(line for line in TASKS.splitlines() if line.startswith("def cross"))) + 1
    assert f"tried_tasks.py:{line})" in message


def test_a_module_that_is_not_there_is_told_by_its_name(folder: Path) -> None:
    spec = spec_of(folder, "good", entrypoint="tried_taskz:good")
    last = events_of(spec)[-1]
    assert "there is no module 'tried_taskz' on the import path" in last["message"]
    assert last["lacks"] == "tried_taskz"


@pytest.mark.parametrize(
    ("function", "remark"),
    [
        ("unused", "idle.weight, idle.bias: no gradient came from the first loss, so it may stay as it is"),
        ("left_out", "2.weight, 2.bias: not given to the optimizer, so it will not be trained"),
        ("warns", "the cache is cold"),
    ],
)
def test_what_does_not_keep_it_from_training_is_remarked(folder: Path, function: str, remark: str) -> None:
    remarks = facts_of(spec_of(folder, function))["remarks"]
    assert len(remarks) == 1
    assert remarks[0].startswith(remark)


def test_a_loss_that_keeps_the_model_is_refused_where_another_object_is_trained(folder: Path) -> None:
    at, said = failure(spec_of(folder, "keeping", parallel={"data": "sharded"}))
    assert at == COMPUTING
    assert said.startswith("the loss was computed with 0.weight, 0.bias, 2.weight and 1 more of the model that")
    assert facts_of(spec_of(folder, "keeping"))["remarks"] == []


def test_a_chain_as_loss_is_tried_with_the_object_that_is_trained(folder: Path) -> None:
    assert facts_of(spec_of(folder, "chained", parallel={"data": "sharded"}))["remarks"] == []


def test_a_loss_that_trains_nothing_is_refused(folder: Path) -> None:
    at, said = failure(spec_of(folder, "elsewhere"))
    assert at == COMPUTING
    assert said.startswith("no parameter of the model got a gradient: ")


@pytest.mark.parametrize("parallel", [{"data": "sharded"}, {"batch_norm": "group"}])
def test_other_ways_of_training_are_tried_too(folder: Path, parallel: dict[str, Any]) -> None:
    assert facts_of(spec_of(folder, "good", parallel=parallel))["remarks"] == []


def test_only_so_much_time_goes_into_reading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_sweep, "_SWEEP_S", 0.0)
    events = events_of(spec_of(folder, "raises", arguments={"k": 137}))
    (detail,) = (event["detail"] for event in events if event.get("check") == SWEEP and event["state"] == "done")
    assert detail == "0 of 300 read"


def test_the_memory_needed_is_near_what_a_probe_of_the_whole_micro_batch_finds(folder: Path) -> None:
    spec = spec_of(folder, "wide", global_batch=256)
    need = memory_need(load_task(spec), spec)
    probe = Probe(load_task(spec), spec, 2**40)
    found = probe.footprint(256)
    assert found is not None
    assert need.node_bytes == pytest.approx(found.static_bytes + found.working_bytes, rel=0.1)
    parameters = 8 * 4096 + 4096 + 4096 * 3 + 3
    assert (need.weight_bytes, need.gradient_bytes) == (4 * parameters, 4 * parameters)
    assert need.optimizer_bytes == pytest.approx(8 * parameters, rel=0.01)


def test_too_little_memory_is_told_with_its_parts_and_what_would_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_memory, "memory_here", lambda device: 4 * 2**20)
    spec = spec_of(folder, "wide", global_batch=1024)
    complaint = facts_of(spec)["memory_complaint"]
    assert complaint.startswith("a node needs about ")
    for part in ("and this machine has 4 MiB", "weights 0.188 MiB", "optimizer 0.375 MiB", "1024 samples at once"):
        assert part in complaint
    fits = int(complaint.rpartition("micro_batch to ")[2].split()[0])
    need = memory_need(load_task(spec), spec.model_copy(update={"micro_batch": fits}))
    assert need.fits_here
    assert not memory_need(load_task(spec), spec.model_copy(update={"micro_batch": fits + 8})).fits_here


def test_what_does_not_even_hold_the_weights_is_to_be_spread() -> None:
    need = MemoryNeed(4 << 30, 4 << 30, 8 << 30, 1 << 20, 32, 1, here_bytes=15 << 30, most_at_once=0)
    assert not need.fits_here
    assert "spread the state over nodes (parallel: {data: sharded}" in need.complaint


def test_the_smallest_limit_of_the_control_groups_above_counts(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/user/job/step\n")
    step = tmp_path / "root" / "user" / "job" / "step"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("max\n")
    (step.parent / "memory.max").write_text("1000\n")
    (step.parent.parent / "memory.max").write_text("3000\n")
    assert trial_memory._group_limits(tmp_path / "membership", tmp_path / "root") == [1000, 3000]
