"""Parses TRES: the cores, the memory and the GPUs that the accounting has of a job."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oakum_service.schedulers.slurm.reading.fields import FieldError
from oakum_service.schedulers.slurm.reading.gres import gpus

_AMOUNT = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]+)?)(?P<unit>[KMGTP]?)")
_MB_OF_UNIT = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


@dataclass(frozen=True)
class Tres:
    """What a job has, on all of its nodes together."""

    cpus: int = 0
    memory_mb: int = 0
    gpus: int = 0


def read_tres(field: str, given: str) -> Tres:
    """What is told in `cpu=6,mem=3000M,node=1,gres/gpu=3,gres/gpu:a100=3`. Of GPUs Slurm tells the number, the
    number of each type, or both, as AccountingStorageTRES has it. Raises `FieldError` for what cannot be read."""
    told = dict(part.partition("=")[::2] for part in given.split(","))
    of_types = gpus(field, given)
    any_type = of_types.pop("", 0)
    return Tres(
        cpus=round(_amount(field, given, told.get("cpu", "0"))),
        memory_mb=round(_amount(field, given, told.get("mem", "0"))),
        gpus=max(any_type, sum(of_types.values())),
    )


def _amount(field: str, given: str, text: str) -> float:
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise FieldError(field, given, "TRES such as cpu=6,mem=3000M,gres/gpu=3")
    return float(match["number"]) * _MB_OF_UNIT[match["unit"]]
