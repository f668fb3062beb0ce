"""Documents of the forecast of how long nodes stay idle."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LEAST, MOST = 10, 500
"""Fewest lengths from which anything can be learnt, and how many count at most."""
_LONGEST_S = 366 * 24 * 3600.0

_Length = Annotated[float, Field(gt=0, le=_LONGEST_S, allow_inf_nan=False)]


class ForecastRequest(BaseModel):
    """How long nodes stay idle here, as a log of this cluster tells."""

    model_config = ConfigDict(extra="forbid")

    source: Annotated[str, Field(min_length=1, max_length=200)]
    """Where it comes from, such as the log's name."""
    lengths_s: Annotated[list[_Length], Field(min_length=LEAST, max_length=MOST)]
    """Lengths of idle times in seconds, drawn from all of them."""


class ForecastView(BaseModel):
    """What the service's forecast is learnt from."""

    seen: int
    """Number of idle times that it has seen end itself, the newest 500 at most."""
    told: int
    """Number of those that were told to it and count still: the fewer, the more it has seen."""
    source: str | None = None
    """Where these come from; null where none were told."""
    by: str | None = None
    """Who told them."""
    at: float | None = None
    """When."""
    new_hole_s: float | None
    """Seconds for which a node that becomes idle now is expected to stay so; null: too little is known."""
    old_hole_s: float | None
    """Seconds for which a node that has been idle for an hour is expected to stay so; null likewise."""
