"""Documents of the audit log."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class AuditEntry(BaseModel):
    """One act of a user or an administrator."""

    id: int
    at: float
    actor: str
    """Who acted: the token's name, or the account that ran a command on the service's machine."""
    role: str
    """Role of the actor's token; `local` for a command on the service's machine."""
    token: str
    """Id of the token; empty without one."""
    request: str
    """Id of the HTTP request, as in its answer's header `X-Request-ID`."""
    address: str
    """Address that the request came from."""
    action: str
    """What was done, such as trainer.cancelled; `refused` where the actor may not do it."""
    subject: str
    """Name of the trainer, user or token concerned; of a refused request its method and path."""
    owner: str | None
    """User whose trainer or token is concerned."""
    refused: bool
    details: dict[str, Any]


class AuditLog(BaseModel):
    """A part of the audit log, the newest entry first."""

    entries: list[AuditEntry]
    next: int | None
    """`before` of the request for the entries before these; null if there are none."""
