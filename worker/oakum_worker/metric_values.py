"""What of the metrics that a task's `evaluate` returns is told and kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

_MOST_METRICS, _LONGEST_NAME = 1000, 255


def _finite_only(metrics: Any) -> Any:
    """The metrics without values that are None, infinite or NaN, and without those that are too many or have too
    long names. What is no mapping is returned as it is, for the validation to refuse."""
    if not isinstance(metrics, Mapping):
        return metrics
    usable = (
        (name, value)
        for name, value in metrics.items()
        if value is not None and (not isinstance(value, float) or math.isfinite(value)) and _is_short(name)
    )
    return dict(itertools.islice(usable, _MOST_METRICS))


def _is_short(name: Any) -> bool:
    return not isinstance(name, str) or len(name) <= _LONGEST_NAME


Metrics = Annotated[dict[str, float], BeforeValidator(_finite_only)]
"""Values by the metrics' names. Those that are infinite or NaN are left out, and so are those after the first
1,000 and with names of more than 255 characters."""
