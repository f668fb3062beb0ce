"""What `logs --errors` prints of a log."""

from __future__ import annotations

import pytest

from answering_service import Service
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_client.cli.error_lines import error_lines

load_commands()

LOG = """\
n1 | submitit INFO (2026-11-22 18:14:37,001) - Starting with JobEnvironment(job_id=77, hostname=n1)
n1 | 2026-11-22 18:14:37,001 agent warming: error budget 0
n1 | epoch 1 of 4
n2 | srun: error: n2: task 0: Killed
n1 | Traceback (most recent call last):
n2 | step 12
n1 |   File "/home/me/train.py", line 9, in loss
n1 |     raise ValueError("no labels")
n1 | ValueError: no labels
n1 |
n1 | The above exception was the direct cause of the following exception:
n1 | Traceback (most recent call last):
n1 |   File "/home/me/train.py", line 3, in run
n1 | my.package.Stopped: after 3
n1 | step 13
n2 | /home/me/train.py:4: UserWarning: slow
n2 | slurmstepd: error: *** STEP 77.0 ON n2 CANCELLED ***
n2 | Fatal Python error: Segmentation fault
n2 | accuracy 0.97""".splitlines()
KEPT = [LOG[number] for number in (4, 6, 7, 8, 10, 11, 12, 13, 15, 17)]


def test_tracebacks_errors_and_warnings_are_kept_and_launchers_left_out() -> None:
    assert error_lines(LOG) == KEPT


def test_a_log_without_errors_gives_nothing() -> None:
    assert error_lines(["n1 | epoch 1", "n1 | mean absolute deviation 0.3", "n2 | "]) == []


@pytest.mark.parametrize(("options", "kept"), [([], KEPT), (["--tail", "2"], KEPT[-2:])])
def test_the_command_looks_through_the_whole_log(
    service: Service, capsys: pytest.CaptureFixture[str], options: list[str], kept: list[str]
) -> None:
    service.documents["GET", "/v1/trainers/digits/logs"] = {"lines": LOG}
    assert run(["logs", "digits", "--errors", *options]) == 0
    assert capsys.readouterr().out.splitlines() == kept
    assert service.requests == [("GET", "/v1/trainers/digits/logs?tail=10000")]
