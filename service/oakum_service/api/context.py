"""What every route works with, and how a route gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from oakum_service.config import Settings
from oakum_service.control.hub import Hub
from oakum_service.db.engine import Sessions
from oakum_service.fragment_configs import FragmentConfigs
from oakum_service.schedulers.port import Scheduler


@dataclass(frozen=True)
class Context:
    """The service's parts that the API needs."""

    settings: Settings
    sessions: Sessions
    readers: Sessions
    reporters: Sessions
    """For agents' reports alone."""
    configs: FragmentConfigs
    scheduler: Scheduler
    inbox: Hub
    """Raised when the controller has something to look at."""
    outbox: Hub
    """Raised when something has changed that others wait for."""
    listeners: set[object] = field(default_factory=set)
    """One thing for each open event stream."""


def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


InContext = Annotated[Context, Depends(_context)]
