"""Trainers on a real Slurm, each in its user's Unix account: three accounts that do not trust each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from oakum_service.client.errors import ApiError
from oakum_service.client.oakum_client import OakumClient
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec
from running_service import processes_of, small_spec, state_of, train_alone, wait_for_size
from slurm_service import SlurmService, step_of, wait_for_starts
from slurm_site import SlurmSite
from unix_accounts import SYSTEM_PYTHON, UnixAccounts, run_as, uid_of, unix_accounts
from waiting import DEADLINE_S, wait_until


class ServiceOfAnAccount(SlurmService):
    """A service that runs in an account of its own, and knows the users alice and bob."""

    def __init__(self, site: SlurmSite, accounts: UnixAccounts) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="oakum-service-", dir=accounts.folder))
        self._uid = uid_of(accounts.service)
        os.chown(self.folder, self._uid, -1)
        super().__init__(self.folder, site, OAKUM_SLURM_ARRAY_FROM="2", **accounts.settings())
        self._tokens: dict[str, str] = {}

    def start(self, *options: str) -> OakumClient:
        """Start it and wait until it answers."""
        (self.data_dir / "client.json").unlink(missing_ok=True)
        command = [str(SYSTEM_PYTHON), "-P", "-m", "oakum_service", "serve", "--verbose", "--load", "0", *options]
        command += ["--data-dir", str(self.data_dir), "--port", "0"]
        environment = {"PATH": os.environ["PATH"], "HOME": "/", "COLUMNS": "200", "OAKUM_CONFIG": ""}
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**environment, **self._environment},
                user=self._uid,
                group=self._uid,
                extra_groups=[],
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        return wait_until("the service answers", self._client)

    def client_of(self, user: str, role: str = "user") -> OakumClient:
        """A client with a token of the user's."""
        if user not in self._tokens:
            found = self._address()
            answer = httpx.post(
                f"{found['url']}/v1/tokens",
                json={"name": user, "role": role},
                headers={"Authorization": f"Bearer {found['token']}"},
                timeout=DEADLINE_S,
            )
            self._tokens[user] = answer.raise_for_status().json()["token"]
        return OakumClient(url=self._address()["url"], token=self._tokens[user])

    def _address(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.data_dir / "client.json").read_text(encoding="utf-8"))
        return found


@pytest.fixture(scope="module")
def accounts() -> Iterator[UnixAccounts]:
    with unix_accounts() as made:
        yield made


@pytest.fixture
def service(slurm: SlurmSite, accounts: UnixAccounts) -> Iterator[ServiceOfAnAccount]:
    running = ServiceOfAnAccount(slurm, accounts)
    yield running
    slurm.cancel_all()
    running.end()
    shutil.rmtree(running.folder, ignore_errors=True)


@pytest.fixture
def reports(accounts: UnixAccounts) -> Path:
    """A folder into which every account writes."""
    folder = Path(tempfile.mkdtemp(prefix="reports-", dir=accounts.folder))
    folder.chmod(0o777)
    return folder


def curious(name: str, accounts: UnixAccounts, reports: Path, paths: list[Path], **fields: object) -> TrainerSpec:
    """The spec of a trainer whose task writes into `reports` which of `paths` its account can read."""
    arguments: dict[str, Any] = {"report": str(reports), "paths": [str(path) for path in paths]}
    arguments |= {"step_s": fields.pop("step_s", 0.005)}
    workdir = str(accounts.tasks)
    return small_spec(name, entrypoint="curious_task:task", workdir=workdir, arguments=arguments, **fields)


def told(reports: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in reports.glob(f"{name}-*.json")]


def uids_of_ranks(accounts: UnixAccounts) -> set[int]:
    """The accounts of the ranks that have their files in the spool."""
    return {process.uids().real for process in processes_of(accounts.spool)}


def num_processes(account: str) -> int:
    """Number of the account's processes."""
    return sum(one.info["uids"].real == uid_of(account) for one in psutil.process_iter(["uids"]))


@pytest.mark.timeout(1200)
def test_two_users_train_beside_each_other_and_neither_reads_what_the_other_has(
    service: ServiceOfAnAccount, accounts: UnixAccounts, reports: Path, tmp_path: Path
) -> None:
    service.start()
    alice, bob = service.client_of(accounts.alice), service.client_of(accounts.bob)
    first = alice.submit(curious("first", accounts, reports, [], max_nodes=2, epochs=8, step_s=0.02))
    wait_until("alice's trains", lambda: step_of(alice, "first") > 0)
    closed = [accounts.spool / accounts.alice, service.data_dir]
    closed += [service.data_dir / "oakum.db", service.data_dir / "secret"]
    closed += list((service.data_dir / "fragments").glob("*"))
    bob.submit(curious("second", accounts, reports, closed, max_nodes=2, epochs=8, step_s=0.02))
    wait_until("both end", lambda: state_of(alice, "first").ended and state_of(bob, "second").ended)
    for client, name, account in ((alice, "first", accounts.alice), (bob, "second", accounts.bob)):
        view = client.trainer(name)
        assert view.state is TrainerState.FINISHED, view.message
        reference = train_alone(small_spec(name, epochs=8), tmp_path)
        assert view.loss == pytest.approx(reference["loss"], rel=1e-9)
        for one in told(reports, name):
            assert one["uid"] == uid_of(account)
            assert set(one["groups"]) == {uid_of(account)}
            assert one["environment"]["HOME"] == "/"
            assert "SLURM_JOB_ID" in one["environment"]
            assert not [key for key in one["environment"] if key.startswith(("OAKUM_", "SUDO_"))]
        folder = Path(view.checkpoint_folder)
        assert folder == accounts.spool / account / "checkpoints" / view.id
        assert {path.stat().st_uid for path in (folder, *folder.rglob("*"))} == {uid_of(account)}
    seen = [one["read"] for one in told(reports, "second")]
    assert seen
    assert all(set(one.values()) == {"PermissionError"} for one in seen), seen
    _go_on_from_the_checkpoint(alice, bob, first.id, accounts)


def _go_on_from_the_checkpoint(alice: OakumClient, bob: OakumClient, first: str, accounts: UnixAccounts) -> None:
    """A new trainer of alice's begins from her first one's checkpoint, and bob's may not."""
    spec = small_spec("third", epochs=9, max_nodes=1, workdir=str(accounts.tasks))
    with pytest.raises(ApiError, match="another user's"):
        bob.submit(spec, begin_from="first")
    third = alice.submit(spec, begin_from="first")
    adopted = accounts.spool / accounts.alice / "checkpoints" / third.id
    assert {path.lstat().st_uid for path in (adopted, *adopted.rglob("*"))} == {uid_of(accounts.alice)}
    wait_until("it ends", lambda: state_of(alice, "third").ended)
    assert state_of(alice, "third") is TrainerState.FINISHED
    assert (alice.quota(accounts.alice).used.storage_gib or 0.0) > 0.0
    assert third.id != first


@pytest.mark.timeout(1200)
def test_nodes_are_given_back_and_a_killed_service_finds_the_users_fragments_again(
    slurm: SlurmSite, service: ServiceOfAnAccount, accounts: UnixAccounts, reports: Path
) -> None:
    service.start()
    alice = service.client_of(accounts.alice)
    alice.submit(curious("elastic", accounts, reports, [], epochs=100_000, max_nodes=2, step_s=0.15))
    wait_for_size(alice, "elastic", 2)
    assert uids_of_ranks(accounts) == {uid_of(accounts.alice)}
    service.kill()
    job = slurm.submit_foreground(nodes=7, run_s=1.0)
    assert slurm.wait_for_end(job) == "COMPLETED"
    survivors = service.running()
    assert survivors, "the one fragment that the job did not need has ended"
    admin = service.start()
    assert f"{survivors} fragments adopted, 0 orphans" in wait_for_starts(admin, 2)[-1]
    alice = service.client_of(accounts.alice)
    before = step_of(alice, "elastic")
    wait_for_size(alice, "elastic", 2)
    wait_until("it trains on", lambda: step_of(alice, "elastic") > before + 10)
    alice.cancel("elastic")
    wait_until("it has ended", lambda: state_of(alice, "elastic").ended)
    wait_until("no process is left", lambda: not num_processes(accounts.alice))


def test_who_has_no_account_for_code_submits_nothing(service: ServiceOfAnAccount, accounts: UnixAccounts) -> None:
    admin = service.start()
    for name, role in (("nobody-at-all", "user"), ("root", "admin"), (accounts.service, "user")):
        with pytest.raises(ApiError, match="runs in their users' Unix accounts here"):
            service.client_of(name, role).submit(small_spec("refused"))
    with pytest.raises(ApiError, match="has none for that"):
        admin.submit(small_spec("refused"))
    assert not admin.trainers().trainers
    assert run_as(accounts.bob, "cat", str(service.data_dir / "client.json")).returncode != 0
