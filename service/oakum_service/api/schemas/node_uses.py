"""Documents of how much of a trainer's nodes was in use."""

from __future__ import annotations

from pydantic import BaseModel


class ShareView(BaseModel):
    """A share from 0 to 1 in one stretch of a chart: the mean over its samples of all nodes asked for, with the
    least and the greatest of them."""

    mean: float
    least: float
    greatest: float


class NodeUsePoint(BaseModel):
    """What the nodes did in one stretch of a chart; null where they do not tell. Shares that begin with `own` are
    the parts of the trainer's own processes."""

    at: float
    """When the stretch ended, in Unix seconds."""
    after_gap: bool = False
    """Whether the trainer had none of the nodes for a while before."""
    cpu: ShareView | None = None
    own_cpu: ShareView | None = None
    memory: ShareView | None = None
    own_memory: ShareView | None = None
    """Without what processes share, and files."""
    gpu: ShareView | None = None
    """Of the time in which the GPUs that the trainer has there computed."""
    gpu_memory: ShareView | None = None


class UsedNode(BaseModel):
    """One node, and what it has; null where it does not tell."""

    node: str
    at: float
    """When its agent was last heard, in Unix seconds."""
    is_present: bool = False
    """Whether the trainer has a fragment there now."""
    cores: float | None
    memory_bytes: int | None
    gpus: int | None
    """Those that the trainer sees."""
    gpu_memory_bytes: int | None


class NodeUseSeries(BaseModel):
    """How much of a trainer's nodes was in use, as its agents have seen it, in order of time."""

    nodes: list[UsedNode]
    """The nodes of the time asked for, the one heard last first; up to 200."""
    points: list[NodeUsePoint]
