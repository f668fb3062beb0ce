"""Connects a command to the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oakum_service.cli.app import CommandError

if TYPE_CHECKING:
    from oakum_service.client.oakum_client import OakumClient


@contextmanager
def connect() -> Iterator[OakumClient]:
    """Context that yields a client of the configured service. Where a `ClientError` is raised within it,
    `CommandError` is raised instead, which ends the command with the message."""
    from oakum_service.client.errors import ClientError
    from oakum_service.client.oakum_client import OakumClient

    try:
        with OakumClient(for_terminal=True) as client:
            yield client
    except ClientError as error:
        raise CommandError(str(error)) from error
