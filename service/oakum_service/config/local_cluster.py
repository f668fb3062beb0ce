"""The settings of the embedded cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from oakum_service.config.group import SettingsGroup


class LocalClusterSettings(SettingsGroup):
    """The embedded cluster: virtual nodes of this machine under a small foreground load."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_LOCAL_")

    nodes: Annotated[int, Field(ge=1, le=256)] = 4
    slots: Annotated[int, Field(ge=1, le=16)] = 1
    """Slots of each node, which foreground jobs and fragments take one by one; with 1 they take whole nodes."""
    seed: int = 7
    """Seed of the foreground load; equal seeds repeat it."""
    load: Annotated[float, Field(ge=0, lt=1)] = 0.4
    """Share of all node-time that foreground jobs ask for, from 0 (no foreground jobs) to less than 1."""
    swf: Path | None = None
    """SWF log to take the foreground jobs from; default: the workload model of `schedulers.workload`."""
    time_compression: Annotated[float, Field(gt=0)] = 600.0
    """Seconds of the workload that pass in one real second."""
    shortest_job_s: float = 10.0
    longest_job_s: float = 45.0
    """Run times of foreground jobs are clipped to `shortest_job_s` ... `longest_job_s`, in real seconds."""
    grace_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds from SIGTERM to SIGKILL when a foreground job takes a node."""
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    """Time limit of a fragment in seconds, such as clusters have; default: none."""
    fork_server: bool = True
    """Fork agents and ranks from a process that has already imported what they need. Ignored on a machine with
    a GPU."""

    @property
    def num_slots(self) -> int:
        """Number of slots of all nodes."""
        return self.nodes * self.slots
