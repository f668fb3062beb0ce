"""Parses GRES: how many GPUs of which type."""

from __future__ import annotations

import re

from oakum_service.schedulers.slurm.reading.fields import FieldError

_NOTHING = frozenset({"", "(null)", "N/A"})
_BRACKETS = re.compile(r"\([^()]*\)")
_MULTIPLES = {"": 1, "K": 1024, "M": 1024**2}
_GPUS = re.compile(
    r"(?:gres[/:])?gpu(?::(?P<type>[A-Za-z_][^:=]*))?(?:[:=](?P<count>[0-9]{1,9})(?P<multiple>[KM]?))?"
)


def gpus(field: str, given: str) -> dict[str, int]:
    """Type -> number of GPUs in a GRES such as `gpu:a100:4(S:0-1),shard:8`, or in what a job asks for, such as
    `gres/gpu:a100:1`; the type is empty where none is given. MIG slices are types of their own. Raises
    `FieldError` for GPUs that cannot be counted."""
    counts: dict[str, int] = {}
    for part in "" if given in _NOTHING else _BRACKETS.sub("", given).split(","):
        name = part.removeprefix("gres/").removeprefix("gres:").partition(":")[0].partition("=")[0]
        if name != "gpu":
            continue
        match = _GPUS.fullmatch(part)
        if match is None:
            raise FieldError(field, given, "GRES such as gpu:a100:4")
        count = int(match["count"] or 1) * _MULTIPLES[match["multiple"] or ""]
        counts[match["type"] or ""] = counts.get(match["type"] or "", 0) + count
    return counts
