"""Clients that connect and never finish a request do not keep the service from others."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from oakum_client.rest.client import OakumClient
from running_service import RunningService
from waiting import wait_until

MOST_FILES = 100
HALF_SENT = {
    "nothing": b"",
    "half a head": b"POST /v1/hooks/events HTTP/1.1\r\nHost: oakum\r\n",
    "half a body": b"POST /v1/trainers HTTP/1.1\r\nHost: oakum\r\nContent-Length: 1000\r\n\r\n{",
    "a whole request": b"GET /healthz HTTP/1.1\r\nHost: oakum\r\n\r\n",
}


@pytest.fixture
def few_files(shared_service: RunningService) -> Iterator[RunningService]:
    """A service that may have 100 files open at once."""
    assert shared_service.process is not None
    before = resource.prlimit(shared_service.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(shared_service.process.pid, resource.RLIMIT_NOFILE, (MOST_FILES, before[1]))
    yield shared_service
    resource.prlimit(shared_service.process.pid, resource.RLIMIT_NOFILE, before)


def test_connections_that_bring_no_request_leave_room_for_others(few_files: RunningService) -> None:
    known = few_files.client().address
    address = urlsplit(known.url)
    assert address.hostname is not None
    assert address.port is not None
    wait_until("the service has looked at its nodes", lambda: few_files.client().cluster().num_nodes == 4)
    for what, sent in HALF_SENT.items():
        with contextlib.ExitStack() as stack:
            for _ in range(MOST_FILES + 50):
                connection = stack.enter_context(socket.create_connection((address.hostname, address.port)))
                connection.settimeout(60)
                with contextlib.suppress(OSError):  # closed already, as one of too many
                    connection.sendall(sent)
            found = OakumClient(url=known.url, token=known.token).cluster()
            assert found.num_nodes == 4, f"beside connections that bring {what}"
