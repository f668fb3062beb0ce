"""deploy/systemd: units that systemd accepts, with commands and options that exist."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from documentation import fault_of

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
DROP_IN = ROOT / "deploy" / "systemd" / "oakum.service.d" / "no-new-privileges.conf"
IMPLY_NO_NEW_PRIVILEGES = {
    "NoNewPrivileges",
    "SystemCallFilter",
    "SystemCallArchitectures",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "PrivateDevices",
    "ProtectKernelTunables",
    "ProtectKernelModules",
    "ProtectKernelLogs",
    "ProtectClock",
    "MemoryDenyWriteExecute",
    "LockPersonality",
    "DynamicUser",
    "CapabilityBoundingSet",
}
"""Directives with which, for a unit that has a user, sudo and set-group-id programs get no privileges."""


def sections(unit: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text(encoding="utf-8"))
    return {name: dict(parser[name]) for name in parser.sections()}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_commands_of_a_unit_exist(unit: Path) -> None:
    service = sections(unit)["Service"]
    commands = [command for name, command in service.items() if name.startswith("Exec")]
    assert commands
    for command in commands:
        program = command.split()[0]
        assert (Path(program).is_absolute(), Path(program).name) == (True, "oakum")
        assert fault_of(command) is None
    assert service["User"] != "root"
    assert int(service["LimitNOFILE"]) >= 4096
    assert service["ProtectSystem"] == "strict"


def test_the_service_can_run_sudo_and_sendmail_unless_the_drop_in_forbids_it() -> None:
    (service,) = (unit for unit in UNITS if unit.name == "oakum.service")
    assert not sections(service)["Service"].keys() & IMPLY_NO_NEW_PRIVILEGES
    assert sections(DROP_IN)["Service"].keys() <= IMPLY_NO_NEW_PRIVILEGES
    # Fragments outlive the service, as docs/admin.md says.
    assert sections(service)["Service"]["KillMode"] == "process"


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("needs systemd-analyze: make system-deps")
    drop_ins = tmp_path / "oakum.service.d"
    drop_ins.mkdir()
    shutil.copy(DROP_IN, drop_ins)
    for unit in UNITS:
        # A command that is not here would be a fault of the unit.
        text = unit.read_text(encoding="utf-8").replace("/opt/oakum/bin/oakum", sys.executable)
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    for unit in UNITS:
        verified = subprocess.run(
            [analyze, "verify", "--man=no", "--recursive-errors=no", str(tmp_path / unit.name)],
            capture_output=True,
            text=True,
            check=False,
        )
        faults = [line for line in verified.stderr.splitlines() if unit.name in line]
        assert (verified.returncode, faults) == (0, [])
