"""The tables, a module for each noun. Times are Unix seconds. JSON columns hold values of `documents` and of the
worker's protocol.

Who writes what: the API writes trainers with their tags, change requests, reports, hook events and idempotency
records; all else is the controller's, and each of its transactions checks the lease. Reports alone, and what they
tell of nodes' use, are written without taking turns.

All modules of this folder are imported here, since `Base.metadata` knows only the tables whose modules were
imported, and foreign keys name tables of other modules.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
