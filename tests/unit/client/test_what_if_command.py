"""`oakum what-if` against answers from memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from answering_service import Service
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()
ANSWER = {
    **{"objective": "speedup", "num_idle": 3, "value": 30.0, "bound": 30.0, "optimal": True, "solver": "cbc"},
    **{"solve_s": 0.01, "held": True},
    "allocations": [
        {
            **{"trainer": "digits", "is_new": False, "nodes_now": 2, "nodes_then": 2, "gained": ["n3"]},
            **{"lost": ["n1"], "why": "at_bound", "reason": "No more are idle."},
        },
        {
            **{"trainer": "big", "is_new": True, "nodes_now": 0, "nodes_then": 0, "gained": [], "lost": []},
            **{"why": "no_idle_node", "reason": "None is free."},
        },
    ],
}
SPEC = "name: big\nentrypoint: a:b\nglobal_batch: 64\nepochs: 2\n"


@pytest.fixture
def answered(service: Service) -> Service:
    service.documents["POST", "/v1/plans/preview"] = ANSWER
    return service


def test_assumptions_are_sent_and_the_plan_is_printed(
    answered: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "big.yaml").write_text(SPEC)
    arguments = ["--add", str(tmp_path / "big.yaml"), "--remove", "old", "--drain", "n7", "--drain-count", "2"]
    changes = ["--set", "digits:max_nodes=4", "--set", "digits:weight=0.5", "--objective", "throughput"]
    assert run(["what-if", *arguments, *changes]) == 0
    [sent] = answered.sent("POST", "/v1/plans/preview")
    [added] = sent.pop("add")
    assert added["name"] == "big"
    [change] = sent.pop("change")
    assert {name: value for name, value in change.items() if value is not None} == {
        "trainer": "digits",
        "max_nodes": 4,
        "weight": 0.5,
    }
    assert sent == {"remove": ["old"], "drain": ["n7"], "drain_count": 2, "objective": "throughput"}
    told = capsys.readouterr().out
    assert "Worth 30 s of training on one node, the sum over all trainers" in " ".join(told.split())
    assert "3 idle nodes to plan with. Nothing was changed." in " ".join(told.split())
    assert "The cluster is held" in told
    assert [line.split()[:4] for line in told.splitlines()[-2:]] == [
        ["digits", "2", "2", "+n3"],
        ["big", "new", "0", "-"],
    ]


def test_the_answer_is_told_as_json(answered: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["what-if", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told | ANSWER == told
    assert told["unit"] == "s of training on one node"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("digits", "expected TRAINER:FIELD=VALUE"),
        ("digits:colour=4", "with min_nodes, max_nodes, weight, priority as FIELD"),
        (":max_nodes=4", "expected TRAINER:FIELD=VALUE"),
        ("digits:max_nodes=many", "'many' is no number for max_nodes"),
    ],
)
def test_a_setting_that_is_none_is_not_sent(
    answered: Service, setting: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["what-if", "--set", setting]) != 0
    assert told in capsys.readouterr().err
    assert answered.requests == []
