"""Connects a command to the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oakum_client.cli.app import CommandError

if TYPE_CHECKING:
    from oakum_client.rest.client import OakumClient


@contextmanager
def connect() -> Iterator[OakumClient]:
    """Context that yields a client of the configured service. Where a `ClientError` is raised within it,
    `CommandError` is raised instead, which ends the command with the message."""
    from oakum_client.rest.client import OakumClient
    from oakum_client.rest.errors import ClientError

    try:
        with OakumClient(for_terminal=True) as client:
            yield client
    except ClientError as error:
        raise CommandError(str(error)) from error
