"""The service's certificate: what is refused at the start, and that a renewed one is shown."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from cells import each
from certificates import Certificate, make_certificate
from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import ServiceUnreachable
from oakum_service.config import Settings
from oakum_service.errors import ConfigurationError
from oakum_service.network.tls import Renewal, check_acceptance, client_context, is_loopback, server_context
from oakum_service.server import OakumServer

URL = "https://127.0.0.1:8470"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("other"), name="other")


@each(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("head", False),
    ],
)
def test_what_is_reached_from_this_machine_alone(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_certificate_that_clients_accept_is_accepted(certificate: Certificate) -> None:
    context = server_context(certificate.pem, certificate.key)
    check_acceptance(context, URL, certificate.pem)
    check_acceptance(context, "https://localhost:1/path", certificate.pem)


@pytest.mark.parametrize(
    ("url", "trusted", "told"),
    [
        ("https://head:8470", True, "Hostname mismatch"),
        ("https://127.0.0.2:8470", True, "IP address mismatch"),
        (URL, False, "self-signed certificate"),
    ],
)
def test_what_clients_would_refuse_is_refused_at_the_start(
    certificate: Certificate, url: str, trusted: bool, told: str
) -> None:
    context = server_context(certificate.pem, certificate.key)
    with pytest.raises(ConfigurationError, match=f"clients would refuse the certificate under {url}: .*{told}"):
        check_acceptance(context, url, certificate.pem if trusted else None)


def test_files_that_cannot_be_used_are_named(certificate: Certificate, other: Certificate, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"service.pem with the key .*other.key: KEY_VALUES_MISMATCH"):
        server_context(certificate.pem, other.key)
    with pytest.raises(ConfigurationError, match=r"nowhere.pem: No such file"):
        server_context(tmp_path / "nowhere.pem", certificate.key)
    loose = tmp_path / "loose.key"
    shutil.copy(certificate.key, loose)
    loose.chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"everybody may read the key .*loose.key: `chmod 600"):
        server_context(certificate.pem, loose)
    with pytest.raises(ConfigurationError, match="expected a PEM file with certificates"):
        client_context(certificate.key)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"host": "0.0.0.0"}, "OAKUM_HOST is 0.0.0.0, and tokens would cross the network in clear"),
        ({"tls_certificate": "a.pem"}, "go together: set both, or neither"),
    ],
)
def test_a_service_does_not_start_without_tls_where_others_listen(
    tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        OakumServer(Settings(data_dir=tmp_path, port=0, **settings))  # type: ignore[arg-type]
    assert not (tmp_path / "client.json").exists()


def shown(context: ssl.SSLContext, authority: Path) -> dict[str, object]:
    """The certificate that a server with this context shows to a new connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as taken, context.wrap_socket(taken, server_side=True) as end:
                end.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            socket.create_connection(listening.getsockname()) as raw,
            client_context(authority).wrap_socket(raw, server_hostname="127.0.0.1") as end,
        ):
            found = end.getpeercert()
        thread.join()
    assert found is not None
    return dict(found)


def test_a_renewed_certificate_is_shown_and_half_a_renewal_is_not(
    certificate: Certificate, other: Certificate, tmp_path: Path
) -> None:
    pem, key = Path(shutil.copy(certificate.pem, tmp_path)), Path(shutil.copy(certificate.key, tmp_path))
    context = server_context(pem, key)
    renewal = Renewal(context, pem, key)
    assert not renewal.look()
    shutil.copy(other.pem, pem)
    assert not renewal.look()
    first = shown(context, certificate.pem)
    shutil.copy(other.key, key)
    assert renewal.look()
    assert not renewal.look()
    assert shown(context, other.pem)["serialNumber"] != first["serialNumber"]


def test_the_cli_says_what_to_do_about_a_certificate_that_it_does_not_trust(
    certificate: Certificate, other: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OAKUM_CA_FILE", str(other.pem))
    context = server_context(certificate.pem, certificate.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)

        def refuse() -> None:
            with suppress(OSError):  # the test is over
                while True:
                    taken, _ = listening.accept()
                    with taken, suppress(OSError):  # the client ends the handshake
                        context.wrap_socket(taken, server_side=True)

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        client = OakumClient(f"https://127.0.0.1:{listening.getsockname()[1]}", "secret")
        with pytest.raises(ServiceUnreachable, match=r"a certificate that is not trusted here.* in OAKUM_CA_FILE"):
            client.cluster()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
