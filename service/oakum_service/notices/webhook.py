"""Calls a webhook: one signed POST to the vetted address, with a time limit, following no redirects."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress

from oakum_service.errors import NoticeFailed, NoticeRefused
from oakum_service.network.webhook_addresses import VettedAddress

_GONE = 410


def post(target: VettedAddress, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Send the body by POST; returns once the recipient has accepted it with a status of 200 to 299, within
    `timeout_s` seconds in all. Raises `NoticeRefused` for a redirect and for status 410, after which no attempt
    can succeed, and otherwise `NoticeFailed`."""
    connection = _Connection(target, timeout_s)
    # The timeout applies to each read and write; a recipient that sends a byte now and then would take for ever.
    deadline = threading.Timer(timeout_s, connection.cut)
    deadline.daemon = True
    deadline.start()
    try:
        connection.request("POST", target.resource, body, {**headers, "Content-Type": "application/json"})
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        late = f" within {timeout_s:g} s" if connection.was_cut else ""
        raise NoticeFailed(f"{target.host} did not take it{late}: {_described(error)}") from error
    finally:
        deadline.cancel()
        connection.close()
    if 200 <= answer.status < 300:
        return
    text = f"{target.host} answers {answer.status}"
    if 300 <= answer.status < 400:
        raise NoticeRefused(f"{text}, a redirect, which is not followed: give the address that it leads to")
    if answer.status == _GONE:
        raise NoticeRefused(f"{text}: it does not want any more")
    raise NoticeFailed(text)


def signature(secret: bytes, at: float, body: bytes) -> str:
    """The header's value `t=SECONDS,v1=HEX`: an HMAC-SHA256 of `SECONDS.BODY`. The time is signed so that a
    recorded call cannot be replayed later."""
    moment = str(int(at))
    digest = hmac.new(secret, moment.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={digest}"


class _Connection(http.client.HTTPConnection):
    """HTTP connection to the vetted IP address, under the URL's host name, which the server's certificate has to
    match."""

    def __init__(self, target: VettedAddress, timeout_s: float) -> None:
        super().__init__(target.host, target.port, timeout=timeout_s)
        self._target = target
        self._socket: socket.socket | None = None
        self.was_cut = False

    def connect(self) -> None:
        """Connect to the vetted address; called by `http.client`."""
        plain = socket.create_connection((self._target.address, self._target.port), self.timeout)
        self._socket = self.sock = plain
        if self._target.tls:
            self.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=self._target.host)
            self._socket = self.sock

    def cut(self) -> None:
        """Shut the connection down from another thread: a read or write that waits then raises."""
        self.was_cut = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _described(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]
