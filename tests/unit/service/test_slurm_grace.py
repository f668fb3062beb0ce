"""How long a fragment is given, by what takes nodes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from oakum_service.config import SlurmSettings
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.grace import grace_s

_SCONTROL = """#!/bin/sh
case "$2" in
    partition) echo "PartitionName=fill Default=NO QoS=N/A GraceTime=45 Hidden=NO" ;;
    config) printf 'SLURM_VERSION           = 22.05.8\\nKillWait                = 25 sec\\n' ;;
esac
"""


@pytest.fixture
def commands_folder(tmp_path: Path) -> Path:
    for name, text in (("scontrol", _SCONTROL), ("sacctmgr", "#!/bin/sh\necho 00:02:00\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("preemption", "qos", "expected"),
    [("partition", None, 45.0), ("qos", "fill", 120.0), ("qos", None, 25.0), ("none", None, 25.0)],
)
def test_the_grace_is_that_of_what_preempts(
    commands_folder: Path, preemption: str, qos: str | None, expected: float
) -> None:
    settings = SlurmSettings(partition="fill", preemption=preemption, qos=qos, bin_dir=commands_folder)
    assert grace_s(SlurmCommands(settings), settings) == expected


def test_a_slurm_that_does_not_answer_is_taken_at_its_default(tmp_path: Path) -> None:
    settings = SlurmSettings(partition="fill", bin_dir=tmp_path)
    assert grace_s(SlurmCommands(settings), settings) == 30.0


def test_no_grace_at_all_is_a_second(commands_folder: Path) -> None:
    (commands_folder / "scontrol").write_text("#!/bin/sh\necho PartitionName=fill GraceTime=0\n", encoding="utf-8")
    settings = SlurmSettings(partition="fill", bin_dir=commands_folder)
    assert grace_s(SlurmCommands(settings), settings) == 1.0
