"""How much of trainers' nodes was in use, as their agents have seen it."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from oakum_service.db.models.base import Base, RowId


class NodeUseSample(Base):
    """What the agent of a trainer's fragment saw of its node at one time. Old neighbouring samples of a node are
    merged into the last of them. Shares are from 0 to 1, and null where the node does not tell."""

    __tablename__ = "node_uses"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"))
    node: Mapped[str] = mapped_column(String(255))
    at: Mapped[float]
    after_gap: Mapped[bool]
    """Whether the sample is a fragment's first, or the first that this process has heard."""
    reports: Mapped[int]
    """Number of samples that this one stands for: of memory it has the greatest, else the mean."""
    cpu: Mapped[float | None]
    """Share of the node's processors that were busy."""
    own_cpu: Mapped[float | None]
    """The fragment's own part of it."""
    memory: Mapped[float | None]
    own_memory: Mapped[float | None]
    gpu: Mapped[float | None]
    """Mean share of time in which the fragment's GPUs computed."""
    gpu_memory: Mapped[float | None]
    cores: Mapped[float | None]
    """What there is of each, as are the bytes below."""
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    gpus: Mapped[int | None]
    gpu_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)

    __table_args__ = (Index("ix_node_uses_trainer", "trainer_id", "node", "at"),)
