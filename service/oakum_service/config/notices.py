"""The settings of notices."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from oakum_service.config.group import SettingsGroup
from oakum_service.network.webhook_addresses import AllowedAddresses
from oakum_worker.spec_options import NotifySpec


def _hosts(entries: list[str]) -> list[str]:
    AllowedAddresses(entries, public=True)
    return entries


def _mail_address(address: str) -> str:
    return NotifySpec(email=address).recipient[1]


class NoticeSettings(SettingsGroup):
    """Who is notified of trainers beside the recipients in their specs, and how webhooks and e-mails are sent."""

    model_config = SettingsConfigDict(env_prefix="OAKUM_NOTICES_")

    allow: Annotated[list[str], AfterValidator(_hosts)] = Field(default_factory=list)
    """Hosts and networks that webhooks may reach beside public addresses: `["*.example.org", "10.1.0.0/16"]`."""
    public: bool = True
    """Whether webhooks may reach every public Internet address; otherwise only those in `allow`."""
    secret_file: Path | None = None
    """File with the secret that webhooks are signed with; without it they are not signed."""
    mail_from: Annotated[str, Field(max_length=254), AfterValidator(_mail_address)] | None = None
    """Sender address of e-mails, in the header and the envelope; without one no e-mail is sent."""
    sendmail: Path = Path("/usr/sbin/sendmail")
    """Program that e-mails are handed to; it is called with `-t -i -f SENDER`."""
    everybody: list[NotifySpec] = Field(default_factory=list)
    """Recipients notified of every trainer: `[{"email": "ops@example.org", "on": ["failed"]}]`."""
    users: dict[str, list[NotifySpec]] = Field(default_factory=dict)
    """Recipients notified of one user's trainers, by the name of the user's token: `{"ada": [{"webhook":
    "https://..."}]}`."""
    starved_after_s: Annotated[float, Field(gt=0)] = 900.0
    """A trainer that has been without nodes for this many seconds while some are idle counts as starved."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 10.0
    """An attempt to deliver a notice fails when the recipient has not accepted it within this many seconds."""
    attempts: Annotated[int, Field(ge=1, le=100)] = 12
    """How often delivery of a notice is attempted before it is given up."""
    retry_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds between the first and the second attempt; each further wait is twice as long, at most one hour."""

    @cached_property
    def allowed(self) -> AllowedAddresses:
        """The addresses that webhooks may reach."""
        return AllowedAddresses(self.allow, public=self.public)
