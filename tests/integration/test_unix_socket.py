"""The service's Unix socket: accounts of the machine are known without a token, by the kernel's word alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from certificates import make_certificate
from oakum_client.rest.address import find_address
from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import NotConfigured
from oakum_service.config import Settings
from oakum_service.errors import ConfigurationError, Forbidden
from oakum_service.identity.accounts import account_at_socket
from oakum_service.identity.names import Identity
from oakum_service.identity.unix_socket import listen_on_socket
from running_service import RunningService, small_spec
from unix_accounts import SYSTEM_PYTHON, UnixAccounts, run_as, uid_of, unix_accounts

pytestmark = pytest.mark.xdist_group("unix accounts")


@pytest.fixture(scope="module")
def accounts() -> Iterator[UnixAccounts]:
    with unix_accounts() as made:
        yield made


@pytest.fixture(scope="module")
def service(accounts: UnixAccounts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service with TLS, of which alice's group administers; everybody else is a user."""
    folder = tmp_path_factory.mktemp("service")
    certificate = make_certificate(folder)
    running = RunningService(
        folder,
        OAKUM_SOCKET=str(accounts.folder / "oakum.sock"),
        OAKUM_SOCKET_USERS="all",
        OAKUM_ADMIN_GROUP=accounts.alice,
        OAKUM_TLS_CERTIFICATE=str(certificate.pem),
        OAKUM_TLS_KEY=str(certificate.key),
        OAKUM_CA_FILE=str(certificate.pem),
        OAKUM_TRUST_USERS="1",
    )
    running.start()
    yield running
    running.end()


def asked(accounts: UnixAccounts, account: str, path: str, *options: str) -> tuple[int, Any]:
    """Status and document that curl gets in the account over the socket."""
    found = str(accounts.folder / "oakum.sock")
    shown = ("--silent", "--max-time", "240", "--write-out", "\n%{http_code}", "--unix-socket", found)
    done = run_as(account, "curl", *shown, *options, f"http://oakum{path}")
    body, _, status = done.stdout.decode().rpartition("\n")
    return int(status), json.loads(body) if body.strip() else None


def posted(document: dict[str, Any]) -> tuple[str, ...]:
    return ("--json", json.dumps(document))


def test_an_account_has_its_name_and_the_role_that_the_settings_give(
    service: RunningService, accounts: UnixAccounts
) -> None:
    for account, role in ((accounts.alice, "admin"), (accounts.bob, "user"), ("root", "admin")):
        status, told = asked(accounts, account, "/v1/session")
        assert (status, told["name"], told["role"]) == (200, account, role)


def test_nothing_that_a_client_sends_changes_who_it_is(service: RunningService, accounts: UnixAccounts) -> None:
    forged = ("X-Forwarded-User: root", "X-Remote-User: root", "oakum.uid: 0", "Remote-User: root")
    for header in forged:
        assert asked(accounts, accounts.bob, "/v1/session", "-H", header)[1]["role"] == "user"
    status, told = asked(accounts, accounts.bob, "/v1/hold", "-X", "PUT", *posted({"reason": "mine"}))
    assert status == 403
    assert f"needs the role admin; the account {accounts.bob} has user" in told["detail"]
    status, _ = asked(accounts, accounts.bob, "/v1/session", "-H", "Authorization: Bearer wrong")
    assert status == 401, "a token that is sent counts, and nothing takes its place"


def test_over_the_network_nobody_is_known_without_a_token(service: RunningService, accounts: UnixAccounts) -> None:
    address = service.client().address
    answer = httpx.get(f"{address.url}/v1/session", verify=False, timeout=240)
    assert answer.status_code == 401


def test_trainers_are_the_accounts_own(service: RunningService, accounts: UnixAccounts) -> None:
    spec = small_spec("socketed", epochs=100_000, max_nodes=1).model_dump(mode="json", exclude_defaults=True)
    status, told = asked(accounts, accounts.bob, "/v1/trainers", *posted(spec))
    assert status == 201, told
    assert told["user"] == accounts.bob
    assert asked(accounts, accounts.service, "/v1/trainers/socketed/cancel", "-X", "POST")[0] == 403
    assert asked(accounts, accounts.alice, "/v1/trainers/socketed/cancel", "-X", "POST")[0] == 200
    _, log = asked(accounts, accounts.alice, "/v1/audit?limit=20")
    row = next(one for one in log["entries"] if one["action"] == "trainer.submitted")
    assert (row["actor"], row["role"], row["address"]) == (accounts.bob, "user", f"uid {uid_of(accounts.bob)}")
    assert row["token"] == ""


def test_the_command_line_needs_no_token(service: RunningService, accounts: UnixAccounts) -> None:
    environment = {**accounts.environment, "PATH": os.environ["PATH"], "HOME": "/", "COLUMNS": "200"}
    words = [str(SYSTEM_PYTHON), "-P", "-m", "oakum", "ps", "--json"]
    for address in (
        {"OAKUM_URL": f"unix:{accounts.folder}/oakum.sock"},
        {"OAKUM_SOCKET": f"{accounts.folder}/oakum.sock"},
    ):
        done = subprocess.run(
            words,
            env=environment | address,
            user=uid_of(accounts.bob),
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert "trainers" in json.loads(done.stdout or "null"), done.stderr


def test_event_streams_work(service: RunningService, accounts: UnixAccounts) -> None:
    client = OakumClient(f"unix:{accounts.folder}/oakum.sock")
    [first, *_] = client.recent_events(5).events
    followed = next(iter(client.events(after=first.id - 1)))
    assert followed.id >= first.id


@pytest.mark.parametrize(
    ("users", "admins", "expected"),
    [
        ("none", None, None),
        ("none", "alice", "admin"),
        ("all", None, "user"),
        ("@alice", None, "user"),
        ("@bob", None, None),
        ("@no-such-group", "no-such-group", None),
    ],
)
def test_the_settings_say_who_is_let_in(
    accounts: UnixAccounts, users: str, admins: str | None, expected: str | None
) -> None:
    names = {"alice": accounts.alice, "bob": accounts.bob}
    group = users.removeprefix("@")
    settings = Settings(
        socket_users=users.replace(group, names.get(group, group)),
        admin_group=None if admins is None else names.get(admins, admins),
    )
    if expected is None:
        with pytest.raises(Forbidden, match=f"{accounts.alice} is not let in"):
            account_at_socket(uid_of(accounts.alice), settings)
    else:
        found = account_at_socket(uid_of(accounts.alice), settings)
        assert found == Identity(accounts.alice, expected)  # type: ignore[arg-type]
    assert account_at_socket(os.geteuid(), settings).role == "admin"
    with pytest.raises(Forbidden, match="has no account"):
        account_at_socket(3_999_999, settings)


@pytest.mark.parametrize("name", ["", " alice", "local-admin", "a\nb", "x" * 64])
def test_a_name_that_no_user_can_have_is_refused(name: str) -> None:
    with pytest.raises(Forbidden, match="cannot be a user's name"):
        Identity(name, "user")


def test_a_socket_that_a_killed_service_has_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen_on_socket(path).close()
    with listen_on_socket(path) as second:
        second.listen()
        assert path.stat().st_mode & 0o777 == 0o666
        with pytest.raises(ConfigurationError, match="another service already listens"):
            listen_on_socket(path)
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="is no socket"):
        listen_on_socket(file)
    with pytest.raises(ConfigurationError, match="bytes that a socket's path"):
        listen_on_socket(tmp_path / ("x" * 108))
    with pytest.raises(ConfigurationError, match="no socket can be made"):
        listen_on_socket(tmp_path / "missing" / "s")
    assert file.read_text(encoding="utf-8") == "precious"


def test_the_socket_is_the_last_place_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OAKUM_URL", raising=False)
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("OAKUM_SOCKET", str(tmp_path / "s"))
    with pytest.raises(NotConfigured):
        find_address()
    with listen_on_socket(tmp_path / "s"):
        found = find_address()
        assert (found.url, found.socket) == (f"unix:{tmp_path}/s", f"{tmp_path}/s")
        (tmp_path / "client.json").write_text('{"url": "http://head:1", "token": "t"}', encoding="utf-8")
        assert find_address().url == "http://head:1"
        assert find_address("unix:/elsewhere").socket == "/elsewhere"
