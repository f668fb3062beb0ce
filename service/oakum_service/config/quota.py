"""The settings of quotas."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from oakum_service.config.group import SettingsGroup


class QuotaSettings(SettingsGroup):
    """What each token, and each user with a token of the role user, may use, unless an administrator has set
    another quota for the user."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_QUOTA_")

    trainers: Annotated[int, Field(ge=0)] = 100
    """Most live trainers of one user."""
    node_hours: Annotated[float, Field(ge=0)] | None = None
    """Most node-hours of one user's trainers in a calendar week (UTC); None means no limit. The limit of nodes at
    one time is `Settings.user_cap`."""
    storage_gib: Annotated[float, Field(ge=0)] | None = None
    """Most GiB of checkpoints of one user, above which the user submits no further trainer; None means no
    limit."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Largest weight that a user may give a trainer."""
    curve_gain: Annotated[float, Field(ge=1)] = 1.1
    """How much more speed per node a user's curve may claim for more nodes than for the fewest: caches may help a
    little, and what is claimed buys nodes."""
    requests_per_s: Annotated[float, Field(gt=0)] = 50.0
    """Requests per second of each token of the roles user and viewer; `inf` for no limit."""
    streams: Annotated[int, Field(ge=1)] = 16
    """Event streams that each token of these roles may have open."""
