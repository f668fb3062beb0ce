"""The idle log that `oakum replay slurm` makes of Slurm's accounting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.accounting_log import read_accounting
from oakum_solver.errors import LogError

load_commands()

SINCE, UNTIL = 1_000_000.0, 1_010_000.0
ANSWERS = {
    "sinfo": "n1\nn2\nn3\nn3\nn4\n",
    "sacct": (
        "n1|990000|1002000\nn1|1008000|Unknown\nn[2-3]|1001000|1003000\nn3|1002000|1004000\n"
        "n2|1006000|1005000\nNone assigned|Unknown|1005000\n|Unknown|Unknown\n(null)|1000001|1000002\n"
        "n[1-|1000100|1000200\nother|1000100|1000200\nn3|1004000|1004000\n"
    ),
    "sacctmgr": "n4|999000|Unknown|\n",
}


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder with Slurm's commands, which answer as above and note how they were called."""
    for name, answer in ANSWERS.items():
        (tmp_path / f"{name}.txt").write_text(answer, encoding="utf-8")
        script = (
            f'#!/bin/sh\necho "$TZ $SLURM_TIME_FORMAT $*" >> {tmp_path}/{name}.calls\ncat {tmp_path}/{name}.txt\n'
        )
        (tmp_path / name).write_text(script, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_nodes_are_idle_while_no_job_has_them_and_they_are_up(slurm: Path) -> None:
    log = read_accounting(SlurmSettings(bin_dir=slurm, partition="fill"), SINCE, UNTIL)
    rows = zip(log.node, log.start_s.tolist(), log.end_s.tolist(), strict=True)
    assert sorted((log.nodes[node], start_s, end_s) for node, start_s, end_s in rows) == [
        ("n1", 2000.0, 8000.0),
        ("n2", 0.0, 1000.0),
        ("n2", 3000.0, 10000.0),
        ("n3", 0.0, 1000.0),
        ("n3", 4000.0, 10000.0),
    ]
    assert (log.name, log.notes) == (
        "slurm",
        (
            "read from Slurm's accounting: 11 jobs, 1 events of nodes, 4 nodes",
            "jobs and events left out that end before they begin: 1",
            "lists of nodes left out that cannot be read: 1",
        ),
    )
    call = (slurm / "sacct.calls").read_text(encoding="utf-8")
    assert call.startswith("UTC %s --allusers ")
    assert "--starttime=1970-01-12T13:46:40 --endtime=1970-01-12T16:33:20" in call
    assert "--partition=fill" in (slurm / "sinfo.calls").read_text(encoding="utf-8")


def test_the_accounting_is_replayed(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OAKUM_SLURM_BIN_DIR", str(slurm))
    (slurm / "sacctmgr.txt").write_text("", encoding="utf-8")
    assert run(["replay", "slurm", "--since", "2h", "--policy", "greedy", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["log"], document["nodes"]) == ("slurm", 3)
    assert document["notes"][0] == "read from Slurm's accounting: 11 jobs, 0 events of nodes, 4 nodes"


def test_an_accounting_that_does_not_answer_is_an_error(slurm: Path) -> None:
    (slurm / "sacct").write_text(
        "#!/bin/sh\necho 'sacct: error: slurmdbd is down' >&2; exit 1\n", encoding="utf-8"
    )
    with pytest.raises(LogError, match=r"Slurm's accounting cannot be read: .*slurmdbd is down"):
        read_accounting(SlurmSettings(bin_dir=slurm), SINCE, UNTIL)


@pytest.mark.parametrize("options", ["idle.csv --since 30d", "slurm --since month", "slurm --since 0d"])
def test_a_span_that_is_none_or_for_a_file_is_wrong_usage(options: str) -> None:
    assert run(["replay", *options.split()]) == 2
