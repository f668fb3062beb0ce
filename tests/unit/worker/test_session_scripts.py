"""How a spec names a script, and what a script and a spec may not say together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cells import each
from oakum_worker.errors import SessionError, TaskError
from oakum_worker.parallel.gradient_look import describe_lacking_gradients
from oakum_worker.session.hosts import Asked, RankHost
from oakum_worker.session.scripts import run_script
from oakum_worker.spec import TrainerSpec, explain
from oakum_worker.task import load_task
from oakum_worker.trying.trial import try_out

LOOP = """
import torch, oakum
model = torch.nn.Linear(3, 1)
data = torch.utils.data.TensorDataset(torch.ones(40, 3), torch.ones(40, 1))
with oakum.session(model, torch.optim.SGD(model.parameters(), lr=0.1), data{more}) as session:
    for x, y in session:
        {before}session.backward((model(x) - y).square().mean())
        session.step()
"""


def spec(folder: Path, **changes: Any) -> TrainerSpec:
    fields = {"name": "loop", "script": "train.py", "workdir": str(folder), "global_batch": 8, "epochs": 2}
    return TrainerSpec.model_validate(fields | changes)


def write(folder: Path, more: str = "", before: str = "") -> None:
    (folder / "train.py").write_text(LOOP.format(more=more, before=before), encoding="utf-8")


@each(
    ("changes", "said"),
    [
        ({"entrypoint": "a:b"}, "script and entrypoint are both given"),
        ({"arguments": {"lr": 1}}, "arguments is for entrypoints"),
        ({"micro_batch": 4}, "micro_batch does not go with a script"),
        ({"parallel": {"data": "sharded"}}, "parallel.data: sharded does not go with a script"),
        ({"precision": "bfloat16"}, "torch.autocast"),
        ({"script": "train"}, "write it as train.py"),
        ({"script": None}, "neither entrypoint nor script is given"),
    ],
)
def test_a_spec_that_names_its_code_wrongly_is_told_what_to_change(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        spec(tmp_path, **changes)
    assert said in "\n".join(explain(refused.value))


@pytest.mark.parametrize(
    ("name", "field"), [("batch_size", "global_batch"), ("epochs", "epochs"), ("seed", "seed")]
)
def test_a_script_that_contradicts_its_spec_is_refused(tmp_path: Path, name: str, field: str) -> None:
    host = RankHost(spec(tmp_path), lambda loop: iter(()), lambda: None)  # type: ignore[arg-type, return-value]
    asked = {"batch_size": None, "epochs": None, "seed": None} | {name: 99}
    with pytest.raises(SessionError, match=f"{name}=99, and the trainer's spec has {field}"):
        host.spec(Asked(**asked))


def test_a_try_runs_two_steps_and_names_what_is_wrong(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    write(tmp_path, before="print('a step', flush=True); ")
    assert try_out(spec(tmp_path), events.append)
    [facts] = [event["facts"] for event in events if event["state"] == "facts"]
    assert (facts["num_samples"], facts["total_samples"], facts["num_parameters"]) == (40, 80, 4)
    assert facts["loss"] > 0
    write(tmp_path, more=", batch_size=9")
    assert not try_out(spec(tmp_path), events.append)
    assert "batch_size=9" in events[-1]["message"]


def test_a_try_of_a_script_remarks_what_got_no_gradient(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    write(tmp_path)
    script = (tmp_path / "train.py").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(script.replace("(model(x)", "(x @ model.weight.T"), encoding="utf-8")
    assert try_out(spec(tmp_path), events.append)
    assert events[-1]["facts"]["remarks"][0] == describe_lacking_gradients(["bias"])


def test_a_script_without_a_session_or_a_file_is_refused(tmp_path: Path) -> None:
    host = RankHost(spec(tmp_path), lambda loop: iter(()), lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TaskError, match="is not a file on this node"):
        run_script(spec(tmp_path), host)
    (tmp_path / "train.py").write_text("print(1)", encoding="utf-8")
    with pytest.raises(SessionError, match=r"without oakum\.session"):
        run_script(spec(tmp_path), host)
    with pytest.raises(TaskError, match="run it with python, or submit it"):
        load_task(spec(tmp_path))
