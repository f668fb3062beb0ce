"""How many slots a trainer's fragments have where its spec leaves that to the service."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Slots = int | Literal["node"]
"""How many slots of one node a fragment has; `node`: all of them."""


class SlotsWhy(StrEnum):
    """What a number of slots follows from."""

    WHOLE_NODES = "whole_nodes"
    """Nodes are given as a whole: there is nothing to decide."""
    PAST = "past"
    """What foreground jobs have taken."""
    MODEL = "model"
    """The model is divided over its ranks."""
    FEW_JOBS = "few_jobs"
    """Too few foreground jobs have been seen."""
    BOUNDS = "bounds"
    """The trainer may not have as many slots as a node."""
    SCATTERED = "scattered"
    """Slots are idle, and no node as a whole."""


@dataclass(frozen=True)
class FragmentSlots:
    """A decision for one trainer, which holds while it has fragments."""

    slots: Slots
    why: SlotsWhy
    reason: str
    """One sentence; empty where nodes are given as a whole."""
