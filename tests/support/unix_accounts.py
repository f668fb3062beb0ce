"""Unix accounts for tests of who runs what: made for a test session, and removed with their rule of sudo."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from abandoned_runs import abandoned_folders, is_over, make_folder
from inherited_state import RUN_PREFIX, folder_of_run
from oakum_service.run_as.installation import LauncherInstallation
from running_service import TASKS
from waiting import wait_until

SYSTEM_PYTHON = Path("/usr/bin/python3")
_RULES = Path("/etc/sudoers.d")
_PREFIX = "oakum-t"
_ROLES = "service", "alice", "bob"
_ACCOUNT = rf"{_PREFIX}\d+-({'|'.join(_ROLES)})"
_FOLDER_PREFIX = "oakum-accounts-"
_NO_SUCH_USER = 6
"""The exit status of `userdel` for an account that does not exist."""


@dataclass(frozen=True)
class UnixAccounts:
    """The accounts of a service and of two users, a folder that all may enter, and the installed launcher."""

    service: str
    alice: str
    bob: str
    folder: Path
    installation: LauncherInstallation
    environment: dict[str, str]
    """Variables with which Python of other accounts finds Oakum."""

    @property
    def tasks(self) -> Path:
        """A copy of the folder of tasks that every account can read."""
        return self.folder / "tasks"

    @property
    def spool(self) -> Path:
        """The folder with a folder for each account."""
        return self.installation.spool

    def settings(self) -> dict[str, str]:
        """The service's settings."""
        return {
            "OAKUM_SLURM_RUN_AS": "submitter",
            "OAKUM_SLURM_SPOOL_DIR": str(self.spool),
            "OAKUM_SLURM_LAUNCHER": str(self.installation.launcher),
            **self.environment,
        }

    def launch(self, *words: str, caller: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run the launcher by sudo, called by an account; by default the service's."""
        command = ["sudo", "-n", "--", str(self.installation.launcher), *words]
        done = run_as(caller or self.service, *command)
        return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def uid_of(account: str) -> int:
    """The account's id."""
    return pwd.getpwnam(account).pw_uid


def run_as(account: str, *command: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command in an account, without any other group of this process."""
    entry = pwd.getpwnam(account)
    return subprocess.run(
        command,
        input=given,
        capture_output=True,
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=[],
        env={"PATH": os.environ["PATH"], "HOME": entry.pw_dir},
        cwd="/",
        check=False,
    )


@contextlib.contextmanager
def unix_accounts() -> Iterator[UnixAccounts]:
    """Make accounts, launcher and rule of sudo; skips the test where that is not possible."""
    _skip_without_means()
    _remove_abandoned()
    # Not tmp_path, which is closed to other accounts.
    folder = make_folder(_FOLDER_PREFIX)
    paths = _readable_paths(folder)
    service, alice, bob = made = [f"{_PREFIX}{os.getpid()}-{role}" for role in _ROLES]
    for name in made:
        comment = str(folder_of_run())
        _administer("useradd", "--no-create-home", "--home-dir", "/", "--comment", comment, name)
    shutil.copytree(TASKS, folder / "tasks")
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    environment = {"PYTHONPATH": ":".join(paths), "TMPDIR": str(folder / "tmp")}
    installation = LauncherInstallation(
        service,
        spool=folder / "spool",
        python=SYSTEM_PYTHON,
        refused=("oakum-refused",),
        environment=environment,
        launcher=folder / "launcher" / "run-as",
        config=folder / "launcher" / "run-as.json",
        sudo_rule=_RULES / f"{_PREFIX}{os.getpid()}",
    )
    try:
        installation.install()
        yield UnixAccounts(service, alice, bob, folder, installation, environment)
    finally:
        installation.uninstall()
        for name in made:
            _remove(name)
        shutil.rmtree(folder, ignore_errors=True)


def _remove(name: str) -> None:
    """End all processes of the account and remove it, if nobody else has."""
    with contextlib.suppress(KeyError):
        subprocess.run(["pkill", "-KILL", "-U", str(uid_of(name))], check=False)
        # Another worker may clear away the same account at the same time.
        _administer("userdel", "--force", name, accepted=(0, _NO_SUCH_USER))


def _remove_abandoned() -> None:
    """Remove accounts and rules of test runs that were killed."""
    for entry in pwd.getpwall():
        run = Path(entry.pw_gecos)
        is_of_tests = re.fullmatch(_ACCOUNT, entry.pw_name) and run.name.startswith(RUN_PREFIX)
        if is_of_tests and is_over(run):
            (_RULES / entry.pw_name.rpartition("-")[0]).unlink(missing_ok=True)
            _remove(entry.pw_name)
    for folder in abandoned_folders(_FOLDER_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _administer(*command: str, accepted: Collection[int] = (0,)) -> None:
    """Run a command that changes accounts until it ends with one of the accepted statuses: again while another
    such command holds the system's lock. Any other failure fails the test."""

    def succeeds() -> bool:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode in accepted or "lock" in done.stderr, done.stderr
        return done.returncode in accepted

    wait_until(" ".join(command), succeeds)


def _readable_paths(folder: Path) -> list[str]:
    """Folders for other accounts' PYTHONPATH: Oakum's packages and site-packages, or links to their files in
    `folder` where other accounts cannot enter the folder above. Skips the test if another account can import Oakum
    from neither."""
    root = Path(__file__).resolve().parents[2]
    sources = [root / package for package in ("client", "service", "solver", "worker")]
    paths = [*sources, *(Path(path) for path in sys.path if path.endswith("site-packages"))]
    if _refusal(paths) is None:
        return [str(path) for path in paths]
    # Nobody else can list the outer folder, and so find sources that were closed to all.
    hidden = Path(tempfile.mkdtemp(dir=folder))
    hidden.chmod(0o711)
    place = Path(tempfile.mkdtemp(dir=hidden))
    place.chmod(0o755)
    links = [place / (path.name if path in sources else f"packages-{number}") for number, path in enumerate(paths)]
    try:
        for path, link in ((root / "migrations", place / "migrations"), *zip(paths, links, strict=True)):
            # By a program: a second for 56,000 files.
            subprocess.run(["cp", "-al", "--", path, link], check=True, capture_output=True, text=True)
        refusal = _refusal(links)
    except subprocess.CalledProcessError as error:  # another file system, whose files cannot be linked here
        refusal = error.stderr[:200]
    if refusal is not None:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"needs accounts: {SYSTEM_PYTHON} cannot run these sources in another account: {refusal}")
    return [str(link) for link in links]


def _refusal(paths: Iterable[Path]) -> str | None:
    """The end of the error that Python prints in another account when it imports Oakum from these paths; None if
    it can import it."""
    probe = "import sys, oakum_client, oakum_service, oakum_worker, torch; print(sys.version_info[:2])"
    python = "env", f"PYTHONPATH={':'.join(map(str, paths))}", str(SYSTEM_PYTHON), "-P", "-c", probe
    done = run_as("nobody", *python)
    told = done.stdout.decode().strip()
    return None if told == str(sys.version_info[:2]) else (done.stderr.decode() or told)[-200:]


def _skip_without_means() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs accounts: root makes them")
    for program in ("sudo", "visudo", "useradd", "userdel"):
        if shutil.which(program) is None:
            pytest.skip(f"needs accounts: there is no {program}: make system-deps")
    refusal = run_as("nobody", "sudo", "-n", "true").stderr.decode()
    if "password is required" not in refusal:
        pytest.skip(f"needs accounts: sudo does not work here: {refusal.strip()}")
