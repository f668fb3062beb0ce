"""Documents of tokens and of the sessions that are begun with them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from oakum_service.identity.tokens import names_session


def _no_session(label: str) -> str:
    if names_session(label):
        raise ValueError("sessions of the dashboard have labels that begin so: choose another label")
    return label


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} has characters that cannot be seen or turn others round: leave them out")
    return text


class TokenView(BaseModel):
    """A token without its text."""

    id: str
    name: str
    """The user who holds it."""
    role: str
    label: str
    created_at: float
    expires_at: float | None
    used_at: float | None
    """Its last use, to about five minutes; null before the first one."""
    is_session: bool = False
    """Whether it is a session of the dashboard, which no other token replaces."""
    is_own: bool = False
    """Whether the request itself came with it."""


class NewToken(TokenView):
    """A token that was just made. No later answer has its text."""

    token: str


class TokenList(BaseModel):
    """Tokens, in the order in which they were made."""

    tokens: list[TokenView]


class TokenRequest(BaseModel):
    """A token to be made."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"\S"), AfterValidator(_printable)]
    role: Literal["hook", "viewer", "user", "admin"] = "user"
    label: Annotated[str, Field(max_length=63), AfterValidator(_printable), AfterValidator(_no_session)] = ""
    expires_in_s: Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)] | None = None
    """Seconds until it expires; null: it is valid until it is revoked."""


class SessionRequest(BaseModel):
    """The token to sign in with."""

    model_config = ConfigDict(extra="forbid")

    token: Annotated[str, Field(min_length=1, max_length=500)]


class SessionView(BaseModel):
    """Who the caller is."""

    id: str
    """Id of the session or token."""
    name: str
    role: str
    expires_at: float | None
    """When the session or token expires; null: it is valid until it is revoked."""
    key: str | None = None
    """What a page sends as `X-Oakum-Dashboard` beside the cookie. Only the answer that begins a session has it."""
    may_submit: bool
    """Whether the caller may submit and retry trainers here."""


class RotateRequest(BaseModel):
    """How long the token that is replaced stays valid."""

    model_config = ConfigDict(extra="forbid")

    overlap_s: Annotated[float, Field(ge=0, le=30 * 86400.0, allow_inf_nan=False)] = 3600.0
