"""Node-time that was used, in sums that are kept for ever."""

from __future__ import annotations

from sqlalchemy import BigInteger, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from oakum_service.db.json_columns import JsonOf
from oakum_service.db.models.base import Base


class Harvest(Base):
    """What fragments that ended on one day have trained; kept for ever."""

    __tablename__ = "harvests"

    day: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Days since 1970-01-01, UTC."""
    node_s: Mapped[float]
    """Node-seconds from each fragment's first generation to its end."""


class UsageHour(Base):
    """Sums of one hour that is over (`control.usage`); kept for ever."""

    __tablename__ = "usage_hours"

    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Hours since 1970-01-01, UTC."""
    idle_node_s: Mapped[float]
    """Node-seconds in holes."""
    used_node_s: Mapped[float]
    """Node-seconds in which fragments trained."""


class LostHour(Base):
    """Idle node-time of one hour that trained nothing although a trainer had the node, or got it too late
    (`control.idle_time`); kept for ever. The first row is of the hour from which on it is counted."""

    __tablename__ = "lost_hours"

    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Hours since 1970-01-01, UTC. What lasts counts to the hour in which it ended."""
    late_node_s: Mapped[float]
    """Node-seconds until a fragment was launched on a node that a trainer got at once."""
    start_up_node_s: Mapped[float]
    """Node-seconds from fragments' launches to their first generations."""
    stalled_node_s: Mapped[float]
    """Node-seconds of stalls, and of steps that had to be repeated."""


class WeekUse(Base):
    """What one user's fragments that ended in one calendar week have had of it (`quotas`)."""

    __tablename__ = "week_uses"

    week_at: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """When the week began, in Unix seconds."""
    user_name: Mapped[str] = mapped_column(String(63), primary_key=True)
    """Empty for trainers without a user."""
    node_s: Mapped[float]
    """Node-seconds from each fragment's launch, or from the week's beginning, to its end."""


class OccupancyHour(Base):
    """The nodes' shares of one hour that is over by use (`node_history.stored_hours`); kept as long as stretches
    are."""

    __tablename__ = "occupancy_hours"

    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Hours since 1970-01-01, UTC."""
    nodes: Mapped[str] = mapped_column(Text)
    """The nodes as a folded list, in whose order their shares are."""
    body: Mapped[bytes] = mapped_column(LargeBinary)
    """The shares, compressed by zlib."""


class LedgerRecord(Base):
    """What is charged to one user in one month (`control.ledger`); kept for ever."""

    __tablename__ = "ledger"

    month: Mapped[str] = mapped_column(String(7), primary_key=True)
    """Such as `2026-11`, by UTC."""
    user_name: Mapped[str] = mapped_column(String(63), primary_key=True)
    """Empty for trainers without a user."""
    lent_node_s: Mapped[float]
    warm_up_node_s: Mapped[float]
    grow_node_s: Mapped[float]
    shrink_node_s: Mapped[float]
    loss_node_s: Mapped[float]
    repeated_node_s: Mapped[float]
    foreground_delay_s: Mapped[float]
    ends: Mapped[dict[str, int]] = mapped_column(JsonOf(dict[str, int]), default=dict)
    """Cause of fragments' ends -> how many ended by it."""
