"""`python -m oakum_worker run`, and the examples it is tried with."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oakum_worker.__main__ import app
from oakum_worker.spec import TrainerSpec, read_spec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task
from warm_processes import run_warm

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_classifier_learns_within_a_few_epochs() -> None:
    options = ["--workdir", str(EXAMPLES), "--epochs", "6", "--global-batch", "128", "--seed", "1", "--json"]
    finished = run_warm("oakum_worker", "run", "digits.classifier:task", *options)
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["steps"] == 72
    assert result["samples"] == 6 * 1437
    assert result["metrics"]["accuracy"] > 0.93


def test_a_spec_is_run_with_the_options_overriding_it() -> None:
    spec = str(EXAMPLES / "digits-autoencoder.yaml")
    done = CliRunner().invoke(app, ["run", "--spec", spec, "--epochs", "1", "--global-batch", "800"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "2 steps, 1 epochs, 1437 samples"
    assert lines[1].startswith("loss ")
    assert lines[2].startswith("reconstruction_mse ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["digits.classifer:task"], "there is no module 'digits.classifer'"),
        (["digits.classifier"], "is not of the form package.module:function"),
        ([], "neither entrypoint nor script is given: name a function"),
        (["--spec", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
    ],
)
def test_a_mistake_is_explained_without_a_traceback(arguments: list[str], expected: str) -> None:
    done = CliRunner().invoke(app, ["run", *arguments])
    assert done.exit_code == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["classifier", "autoencoder"])
def test_an_examples_spec_loads_and_has_the_steps_it_tells(name: str) -> None:
    path = EXAMPLES / f"digits-{name}.yaml"
    told = re.search(r": ([\d,]+) steps", path.read_text())
    assert told is not None
    spec = read_spec(path)
    assert TrainingLoop(load_task(spec), spec).progress.total_steps == int(told[1].replace(",", ""))


def test_nodes_that_become_idle_are_worth_to_both_examples_what_their_specs_tell() -> None:
    classifier, autoencoder = (
        read_spec(EXAMPLES / f"digits-{name}.yaml") for name in ("classifier", "autoencoder")
    )
    assert gains(classifier) == gains(autoencoder) == pytest.approx([1.0, 0.9, 0.8, 0.6])


def gains(spec: TrainerSpec) -> list[float]:
    """What each node more is worth: the weighted speedup that it brings, as plans count by default."""
    one_node = spec.curve[0][1]
    rates = [0.0, *(rate for _, rate in spec.curve)]
    return [spec.weight * (after - before) / one_node for before, after in itertools.pairwise(rates)]
