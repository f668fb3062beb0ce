"""Trainers on a real Slurm, each in its user's Unix account: three accounts that do not trust each other."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import ApiError
from oakum_service.api.schemas.trainers import TrainerChange
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec
from running_service import processes_of, small_spec, state_of, train_alone
from slurm_service import SlurmService, step_of, wait_for_size, wait_for_starts
from slurm_site import SlurmSite, wait_until
from unix_accounts import SYSTEM_PYTHON, UnixAccounts, run_as, uid_of, unix_accounts
from waiting import DEADLINE_S

_EPOCHS = 60


class ServiceOfAnAccount(SlurmService):
    """A service that runs in an account of its own, and knows the users alice and bob."""

    def __init__(self, site: SlurmSite, accounts: UnixAccounts) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="oakum-service-", dir=accounts.folder))
        self._uid = uid_of(accounts.service)
        os.chown(self.folder, self._uid, -1)
        super().__init__(
            self.folder, site, OAKUM_SLURM_ARRAY_FROM="2", OAKUM_SLURM_POLL_FLOOR_S="1", **accounts.settings()
        )
        self._tokens: dict[str, str] = {}
        # The same in each life: users' accounts cannot read in the service's folder where it answers now.
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port: int = probe.getsockname()[1]

    def start(self, *options: str) -> OakumClient:
        """Start it and wait until it answers."""
        (self.data_dir / "client.json").unlink(missing_ok=True)
        command = [str(SYSTEM_PYTHON), "-P", "-m", "oakum", "serve", "--verbose", "--load", "0", *options]
        command += ["--data-dir", str(self.data_dir), "--port", str(self._port)]
        environment = {"PATH": os.environ["PATH"], "HOME": "/", "COLUMNS": "200", "OAKUM_CONFIG": ""}
        # So that no agent that is only slow to find a restarted service is given up.
        environment |= {"OAKUM_HEARTBEAT_TIMEOUT_S": "60", "OAKUM_RANK_TIMEOUT_S": "30"}
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
    running.end()
    shutil.rmtree(running.folder, ignore_errors=True)


@pytest.fixture
def reports(accounts: UnixAccounts) -> Path:
    """A folder into which every account writes."""
    folder = Path(tempfile.mkdtemp(prefix="reports-", dir=accounts.folder))
    folder.chmod(0o777)
    return folder


def curious(name: str, accounts: UnixAccounts, reports: Path, paths: list[Path], max_nodes: int) -> TrainerSpec:
    """The spec of a trainer whose task writes into `reports` which of `paths` its account can read, and takes a
    second for each step until there is a file `gate`."""
    arguments = {"report": str(reports), "paths": [str(path) for path in paths], "gate": str(reports / "gate")}
    workdir = str(accounts.tasks)
    return small_spec(
        name,
        entrypoint="curious_task:task",
        workdir=workdir,
        arguments=arguments,
        epochs=_EPOCHS,
        max_nodes=max_nodes,
    )


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
    slurm: SlurmSite, service: ServiceOfAnAccount, accounts: UnixAccounts, reports: Path, tmp_path: Path
) -> None:
    """Alice trains on two nodes, bob on one, until their trainers end; foreground jobs have all other nodes."""
    admin = service.start()
    _who_has_no_account_for_code_submits_nothing(admin, service, accounts)
    slurm.occupy(5)
    alice, bob = service.client_of(accounts.alice), service.client_of(accounts.bob)
    first = alice.submit(curious("first", accounts, reports, [], max_nodes=2))
    wait_for_size(alice, "first", 2)
    assert uids_of_ranks(accounts) == {uid_of(accounts.alice)}
    closed = [accounts.spool / accounts.alice, service.data_dir]
    closed += [service.data_dir / "oakum.db", service.data_dir / "secret"]
    closed += list((service.data_dir / "fragments").glob("*"))
    bob.submit(curious("second", accounts, reports, closed, max_nodes=1))
    wait_for_size(bob, "second", 1)
    assert uids_of_ranks(accounts) == {uid_of(accounts.alice), uid_of(accounts.bob)}
    _a_killed_service_finds_the_users_fragments_again(slurm, service, accounts)
    alice, bob = service.client_of(accounts.alice), service.client_of(accounts.bob)
    alice.change("first", TrainerChange(max_nodes=1))  # bob's may end first, and leave a node that it would take
    (reports / "gate").touch()
    wait_until("both end", lambda: state_of(alice, "first").ended and state_of(bob, "second").ended)
    reference = train_alone(small_spec("first", epochs=_EPOCHS), tmp_path)
    for client, name, account in ((alice, "first", accounts.alice), (bob, "second", accounts.bob)):
        view = client.trainer(name)
        assert view.state is TrainerState.FINISHED, view.message
        assert view.loss == pytest.approx(reference["loss"], rel=1e-9), name
        assert told(reports, name)
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
    assert all(set(one.values()) == {"PermissionError"} for one in seen), seen
    _go_on_from_the_checkpoint(alice, bob, first.id, accounts)


def _who_has_no_account_for_code_submits_nothing(
    admin: OakumClient, service: ServiceOfAnAccount, accounts: UnixAccounts
) -> None:
    """Tokens have to have the names of accounts that may run code; and nobody else reads the service's token."""
    for name, role in (("nobody-at-all", "user"), ("root", "admin"), (accounts.service, "user")):
        with pytest.raises(ApiError, match="runs in their users' Unix accounts here"):
            service.client_of(name, role).submit(small_spec("refused"))
    with pytest.raises(ApiError, match="has none for that"):
        admin.submit(small_spec("refused"))
    assert not admin.trainers().trainers
    assert run_as(accounts.bob, "cat", str(service.data_dir / "client.json")).returncode != 0


def _a_killed_service_finds_the_users_fragments_again(
    slurm: SlurmSite, service: ServiceOfAnAccount, accounts: UnixAccounts
) -> None:
    """While the service is away a foreground job takes one of alice's nodes; the other fragments are adopted, and
    both users' trainers train on."""
    node = service.client_of(accounts.alice).trainer("first").nodes[0]
    service.kill()
    slurm.occupy(1, f"--nodelist={node}")
    assert service.running() == 2, "the fragments that the job did not need"
    assert "2 fragments adopted, 0 orphans" in wait_for_starts(service.start(), 2)[-1]
    for user, name, lost in ((accounts.alice, "first", 1), (accounts.bob, "second", 0)):
        client = service.client_of(user)
        _trains_on_one_node(client, name)
        assert client.trainer(name).nodes_lost == lost, name


def _trains_on_one_node(client: OakumClient, name: str) -> None:
    wait_until(f"{name} is on one node", lambda: len(client.trainer(name).nodes) == 1)
    before = step_of(client, name)
    wait_until(f"{name} trains on", lambda: step_of(client, name) > before + 3)


def _go_on_from_the_checkpoint(alice: OakumClient, bob: OakumClient, first: str, accounts: UnixAccounts) -> None:
    """A new trainer of alice's begins from her first one's checkpoint, and bob's may not. Once it is cancelled,
    no process of hers is left."""
    spec = small_spec("third", epochs=100_000, max_nodes=1, workdir=str(accounts.tasks))
    with pytest.raises(ApiError, match="another user's"):
        bob.submit(spec, begin_from="first")
    third = alice.submit(spec, begin_from="first")
    adopted = accounts.spool / accounts.alice / "checkpoints" / third.id
    assert {path.lstat().st_uid for path in (adopted, *adopted.rglob("*"))} == {uid_of(accounts.alice)}
    assert third.id != first
    steps = alice.trainer("first").step
    early = wait_until("it trains", lambda: (view := alice.trainer("third")).steps_at_size.get(1) and view.step)
    assert early > steps, "it has begun from the checkpoint"
    assert (alice.quota(accounts.alice).used.storage_gib or 0.0) > 0.0
    alice.cancel("third")
    wait_until("it has ended", lambda: state_of(alice, "third").ended)
    wait_until("no process is left", lambda: not num_processes(accounts.alice))
