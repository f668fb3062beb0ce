"""A controller for the API under test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from api_under_test import ApiUnderTest
from oakum_service.control.controller import Controller
from oakum_service.db.lease import LeaseHolder
from waiting import DEADLINE_S


@contextmanager
def controlled(api: ApiUnderTest, *, alone: bool = True) -> Iterator[None]:
    """A controller runs. `alone`: no other process uses the database."""
    lease = LeaseHolder(api.sessions, alone=alone)
    context = api.context
    api.settings.heartbeat_timeout_s = 3600.0
    controller = Controller(
        api.settings,
        api.sessions,
        context.readers,
        api.scheduler,
        context.configs,
        lease,
        api.news_for_controller,
        api.news_for_readers,
        turns=context.turns,
    )
    thread = threading.Thread(target=lambda: asyncio.run(controller.run()))
    thread.start()
    try:
        yield
    finally:
        asyncio.run(controller.stop())
        thread.join(DEADLINE_S)
