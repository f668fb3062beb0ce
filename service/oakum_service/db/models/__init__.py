"""The tables, a module for each noun. Times are Unix seconds. JSON columns hold values of `documents` and of the
worker's protocol.

Who writes what: the API writes trainers, change requests, reports, hook events and idempotency records; all else
is the controller's, and each of its transactions checks the lease. Reports alone are written without taking turns.

All modules are imported here, since `Base.metadata` knows only the tables whose modules were imported, and
foreign keys name tables of other modules.
"""

from oakum_service.db.models import (
    callers,
    cluster,
    events,
    fragments,
    installation,
    plans,
    progress,
    trainers,
    usage,
)

__all__ = [
    "callers",
    "cluster",
    "events",
    "fragments",
    "installation",
    "plans",
    "progress",
    "trainers",
    "usage",
]
