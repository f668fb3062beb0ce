"""TLS: the service's certificate, which is checked at the start as clients will check it, and read again when it
is renewed; and the certificates that clients trust."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from oakum_service.errors import ConfigurationError
from oakum_worker.errors import reason_of

_log = logging.getLogger("oakum")
_OTHERS_MAY_READ = 0o004


def is_loopback(host: str) -> bool:
    """Whether a service that listens there is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The context of a server with this certificate, which its chain may follow, and this private key. Raises
    `ConfigurationError` for files that cannot be used, and for a key that everybody on this machine may read."""
    try:
        if key.stat().st_mode & _OTHERS_MAY_READ:
            raise ConfigurationError(f"everybody may read the key {key}: `chmod 600 {key}`")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"the certificate {certificate} with the key {key}: {error.reason or error}: expected PEM files that "
            "belong together, the certificate before its chain"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{error.filename or certificate}: {error.strerror}") from error
    return context


def client_context(ca_file: Path) -> ssl.SSLContext:
    """The context of a client that trusts the authorities in this PEM file and no others. Raises
    `ConfigurationError` for a file that cannot be used."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"the authorities in {ca_file} cannot be read: {reason_of(error)}: expected a PEM file with "
            "certificates"
        ) from error


def check_acceptance(server: ssl.SSLContext, url: str, ca_file: Path | None) -> None:
    """Raise `ConfigurationError` where a client that trusts the authorities in `ca_file`, by default the system's,
    would refuse the server under this address."""
    client = ssl.create_default_context() if ca_file is None else client_context(ca_file)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname=urlsplit(url).hostname or "")
    try:
        while not (_is_done(ours) & _is_done(theirs)):
            pass
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(
            f"clients would refuse the certificate under {url}: {error.verify_message}: name the authority that "
            "has signed it, or the certificate itself, in OAKUM_CA_FILE, and an address that it is for in "
            "OAKUM_PUBLIC_URL"
        ) from error


def _is_done(end: ssl.SSLObject) -> bool:
    """Take the handshake as far as it goes; returns whether it has ended."""
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


class Renewal:
    """Loads the certificate again when its file or the key's has changed, for connections to come."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        """The files have been loaded into `context` already."""
        self._context, self._files = context, (certificate, key)
        self._known = self._marks()

    def look(self) -> bool:
        """Load the files if they have changed; returns whether they were loaded. Files that do not belong
        together, as in the middle of a renewal, are logged and tried again at the next look."""
        marks = self._marks()
        if marks == self._known:
            return False
        certificate, key = self._files
        try:
            server_context(certificate, key)
            self._context.load_cert_chain(certificate, key)
        except ConfigurationError as error:
            _log.warning("the certificate is not renewed: %s", error)
            return False
        self._known = marks
        _log.info("the certificate %s was renewed", certificate)
        return True

    def _marks(self) -> list[tuple[int, int, int]]:
        marks = []
        for file in self._files:
            try:
                state = file.stat()
            except OSError:
                marks.append((0, 0, 0))
                continue
            marks.append((state.st_mtime_ns, state.st_size, state.st_ino))
        return marks
