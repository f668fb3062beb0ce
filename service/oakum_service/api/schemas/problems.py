"""The document of a refused request."""

from __future__ import annotations

from pydantic import BaseModel


class ProblemDetails(BaseModel):
    """RFC 9457 problem details; media type application/problem+json."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[str] = []
    """One line for each thing to change, if there are several."""
