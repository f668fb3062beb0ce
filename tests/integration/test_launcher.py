"""The launcher that root runs: whom it becomes, whom it refuses, and what it does not let its callers choose."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakum_service.errors import AccountUnavailable, ConfigurationError, Forbidden
from oakum_service.fragments.trainer_files import SubmittersFiles
from oakum_service.run_as import launcher
from oakum_service.run_as.accounts import UserAccounts
from oakum_service.run_as.installation import LauncherInstallation
from oakum_worker.errors import CheckpointError
from unix_accounts import SYSTEM_PYTHON, UnixAccounts, run_as, uid_of, unix_accounts
from waiting import DEADLINE_S

pytestmark = pytest.mark.xdist_group("unix accounts")


@pytest.fixture(scope="module")
def accounts() -> Iterator[UnixAccounts]:
    with unix_accounts() as made:
        yield made


def test_it_tells_the_service_what_is_installed(accounts: UnixAccounts) -> None:
    told = json.loads(accounts.launch("check").stdout)
    assert told == {"python": "/usr/bin/python3", "spool": str(accounts.spool)}


def test_it_makes_a_folder_that_only_the_user_enters(accounts: UnixAccounts) -> None:
    told = json.loads(accounts.launch("check", "--account", accounts.alice).stdout)
    folder = Path(told["folder"])
    assert told["uid"] == uid_of(accounts.alice)
    assert folder.parent == accounts.spool
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (uid_of(accounts.alice), 0o700)
    assert run_as(accounts.bob, "ls", str(folder)).returncode != 0
    assert run_as(accounts.service, "ls", str(folder)).returncode != 0


@pytest.mark.parametrize(
    "name", ["root", "daemon", "slurm", "SERVICE", "nobody", "nobody-at-all", "", "-x", "../root", "a b", "0"]
)
def test_it_refuses(accounts: UnixAccounts, name: str) -> None:
    name = accounts.service if name == "SERVICE" else name
    done = accounts.launch("fragment", f"--account={name}")
    assert done.returncode == launcher.REFUSED, done
    assert done.stderr.startswith("run-as: ")


def test_it_refuses_an_account_with_roots_group() -> None:
    config = {"least_uid": 0, "refused": []}
    with pytest.raises(launcher.RefusedError, match="system account"):
        launcher.allowed("root", config)


def test_others_than_the_service_may_not_call_it(accounts: UnixAccounts) -> None:
    assert "password is required" in accounts.launch("check", caller=accounts.alice).stderr
    assert (
        "password is required" in accounts.launch("check", "--account", accounts.bob, caller=accounts.alice).stderr
    )


def test_the_caller_chooses_neither_command_nor_environment(accounts: UnixAccounts) -> None:
    assert accounts.launch("python", "--account", accounts.alice).returncode == 2
    assert accounts.launch("fragment").returncode == 2
    assert accounts.launch("fragment", "--account", accounts.alice, "-c", "id").returncode == 2
    assert (
        "not allowed to set"
        in run_as(
            accounts.service, "sudo", "-n", "PYTHONPATH=/tmp", str(accounts.installation.launcher), "check"
        ).stderr.decode()
    )
    shell = run_as(accounts.service, "sudo", "-n", "--", "/bin/sh", "-c", "id")
    assert shell.returncode != 0


@pytest.mark.parametrize("change", ["config", "spool", "no JSON", "not complete", "relative"])
def test_it_does_not_act_on_what_others_may_change(accounts: UnixAccounts, change: str) -> None:
    config, spool = accounts.installation.config, accounts.spool
    before = config.read_text(encoding="utf-8")
    try:
        match change:
            case "config":
                config.chmod(0o666)
            case "spool":
                spool.chmod(0o777)
            case "no JSON":
                config.write_text("python: /bin/sh", encoding="utf-8")
            case "not complete":
                config.write_text(json.dumps({**json.loads(before), "refused": None}), encoding="utf-8")
            case "relative":
                config.write_text(json.dumps({**json.loads(before), "python": "python3"}), encoding="utf-8")
        assert accounts.launch("check", "--account", accounts.alice).returncode == launcher.WRONG
    finally:
        config.write_text(before, encoding="utf-8")
        config.chmod(0o644)
        spool.chmod(0o755)
    assert accounts.launch("check", "--account", accounts.alice).returncode == 0


def test_a_folder_that_is_another_accounts_or_a_link_is_refused(accounts: UnixAccounts) -> None:
    accounts.launch("check", "--account", accounts.alice)
    accounts.launch("check", "--account", accounts.bob)
    bobs = accounts.spool / accounts.bob
    aside = bobs.rename(accounts.spool / "aside")
    try:
        bobs.symlink_to(accounts.spool / accounts.alice)
        assert accounts.launch("check", "--account", accounts.bob).returncode == launcher.WRONG
        bobs.unlink()
        bobs.mkdir(mode=0o700)
        os.chown(bobs, uid_of(accounts.alice), -1)
        assert accounts.launch("check", "--account", accounts.bob).returncode == launcher.WRONG
        os.chown(bobs, uid_of(accounts.bob), -1)
        bobs.chmod(0o750)
        assert accounts.launch("check", "--account", accounts.bob).returncode == launcher.WRONG
    finally:
        bobs.unlink() if bobs.is_symlink() else bobs.rmdir()
        aside.rename(bobs)


def test_checkpoints_are_looked_at_in_the_users_account(accounts: UnixAccounts) -> None:
    files = SubmittersFiles(UserAccounts(accounts.installation.launcher), accounts.spool)
    files.check(accounts.alice)
    trainer, other = str(uuid.uuid4()), str(uuid.uuid4())
    checkpoints = files.checkpoints(accounts.alice)
    folder = checkpoints.of(trainer)
    assert folder == accounts.spool / accounts.alice / "checkpoints" / trainer
    assert not checkpoints.exist(trainer)
    assert checkpoints.best_step(trainer) is None
    assert run_as(accounts.alice, "mkdir", "-p", str(folder)).returncode == 0
    file = accounts.tasks / "small_task.py"
    assert run_as(accounts.alice, "cp", str(file), str(folder)).returncode == 0
    # A link to what root may read and alice may not.
    assert run_as(accounts.alice, "ln", "-s", "/etc/shadow", str(folder / "step-1")).returncode == 0
    assert checkpoints.exist(trainer)
    assert checkpoints.size_bytes([trainer, other]) >= file.stat().st_size
    with pytest.raises(CheckpointError, match=r"step-1|Permission|Not a directory|cannot be put"):
        checkpoints.adopt(trainer, other)
    assert not checkpoints.exist(other)
    with pytest.raises(CheckpointError, match="no durable checkpoint"):
        files.checkpoints(accounts.bob).adopt(trainer, other)
    with pytest.raises(ValueError, match="trainers"):
        checkpoints.exist("../../bob")


def test_users_without_an_account_are_told(accounts: UnixAccounts, tmp_path: Path) -> None:
    known = UserAccounts(accounts.installation.launcher)
    with pytest.raises(Forbidden, match=r"'nobody-at-all' has none .*there is no account"):
        known.check("nobody-at-all")
    with pytest.raises(AccountUnavailable, match="oakum run-as check"):
        UserAccounts(tmp_path / "nothing").check(accounts.alice)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service_account": "oakum ALL"}, "expected the service's account"),
        ({"launcher": Path("/opt/a b")}, "expected an absolute one"),
        ({"spool": Path("relative")}, "expected an absolute one"),
    ],
)
def test_what_a_rule_of_sudo_cannot_hold_is_refused(change: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {"service_account": "oakum", "spool": Path("/s"), "python": Path("/p")}
    with pytest.raises(ConfigurationError, match=message):
        LauncherInstallation(**(fields | change))  # type: ignore[arg-type]


_ASKING = """
import sys, time
from pathlib import Path
from oakum_service.run_as.accounts import UserAccounts
from oakum_service.fragments.trainer_files import SubmittersFiles
launcher, spool, user, trainer = sys.argv[1:]
checkpoints = SubmittersFiles(UserAccounts(Path(launcher), within_s=5.0), Path(spool)).checkpoints(user)
for _ in range(2):
    try:
        print(checkpoints.best_step(trainer), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


def test_a_user_who_holds_up_an_answer_holds_up_nobody(accounts: UnixAccounts) -> None:
    """The service's account waits no longer, whether or not `sudo` lets it end the process."""
    accounts.launch("check", "--account", accounts.alice)
    trainer = str(uuid.uuid4())
    folder = accounts.spool / accounts.alice / "checkpoints" / trainer
    fifo = folder / "best.json"
    assert run_as(accounts.alice, "mkdir", "-p", str(folder)).returncode == 0
    assert run_as(accounts.alice, "mkfifo", str(fifo)).returncode == 0
    paths = accounts.environment["PYTHONPATH"]
    command = ["env", f"PYTHONPATH={paths}", str(SYSTEM_PYTHON), "-P", "-c", _ASKING]
    command += [str(accounts.installation.launcher), str(accounts.spool), accounts.alice, trainer]
    try:
        done = run_as(accounts.service, "timeout", str(DEADLINE_S), *command)
    finally:
        run_as(accounts.alice, "pkill", "-KILL", "-f", "oakum_worker.checkpoint.in_account", "-U", accounts.alice)
        run_as(accounts.alice, "rm", "-r", str(folder))
    first, second = done.stdout.decode().splitlines()
    assert "has not ended within 5 s" in first
    assert "has not ended" in second
