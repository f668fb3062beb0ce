"""Plans as rows of the database, in which nothing is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oakum_service.db.models.plans import PlanRecord
from oakum_service.documents.grant import Grant


def plan_record(allocations: Mapping[str, Grant] | None = None, **facts: Any) -> PlanRecord:
    """A plan that gives the trainers of these ids their grants. `facts` are columns that differ from those of an
    optimal plan of time 0."""
    complete: dict[str, Any] = {
        "snapshot": 1,
        "made_at": 0.0,
        "objective": "throughput",
        "look_ahead_s": 30.0,
        "value": 1.0,
        "bound": 1.0,
        "solver": "cbc",
        "solve_s": 0.01,
        "optimal": True,
    }
    return PlanRecord(**complete | facts, allocations=dict(allocations or {}))
