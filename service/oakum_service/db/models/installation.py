"""The service itself: which installation it is, which process controls it, and what administrators have set."""

from __future__ import annotations

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from oakum_service.db.json_columns import JsonOf
from oakum_service.db.models.base import Base


class Lease(Base):
    """The process that may write as the controller, and until when. The table has one row."""

    __tablename__ = "lease"

    id: Mapped[int] = mapped_column(primary_key=True)
    holder: Mapped[str] = mapped_column(String(255))
    token: Mapped[int]
    """Fencing token: rises with every change of holder."""
    expires_at: Mapped[float]
    snapshot_at: Mapped[float | None]
    """When the holder last read the scheduler's state; None if no holder has yet."""
    closed: Mapped[str] = mapped_column(Text, default="")
    """Why the scheduler begins no job of ours, by that state; empty if it does."""
    silent_since: Mapped[float | None] = mapped_column(default=None)
    """Since when the scheduler has not answered the holder; None while it does."""
    silent_tried: Mapped[str] = mapped_column(Text, default="")
    """What the holder has asked it since, and what came of that."""


class Installation(Base):
    """The installation of the service that the database belongs to. One row."""

    __tablename__ = "installation"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(16))
    """Hash of the installation's secret, which lies in its data directory."""
    data_dir: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(String(255))
    """Where the service was first started, with `data_dir`."""
    database: Mapped[str | None] = mapped_column(String(32))
    """A random text by which the processes that share the data directory know that they share the database."""


class Hold(Base):
    """An admin's order that no fragment may run. One row, or none."""

    __tablename__ = "holds"

    id: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    by_name: Mapped[str] = mapped_column(String(63))
    since: Mapped[float]


class GivenForecast(Base):
    """What an administrator has told of how long nodes stay idle here. One row, or none."""

    __tablename__ = "given_forecasts"

    id: Mapped[int] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(Text)
    """Where that comes from, such as a log's name."""
    lengths_s: Mapped[tuple[float, ...]] = mapped_column(JsonOf(tuple[float, ...]))
    """Lengths of idle times in seconds, rising."""
    by_name: Mapped[str] = mapped_column(String(63))
    at: Mapped[float]


class SettingRecord(Base):
    """A setting that an administrator has changed while the service runs."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
    """A JSON value."""
    by_name: Mapped[str] = mapped_column(String(63))
    at: Mapped[float]
