"""Parses the database's URL, also in the forms that PostgreSQL's own programs take."""

from __future__ import annotations

import re

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from oakum_service.errors import ConfigurationError

_SEVERAL = re.compile(
    r"(?P<begin>postgresql(?:\+\w+)?://)(?P<user>[^@/?]*@)?(?P<hosts>[^@/?]*,[^@/?]*)(?P<name>/[^?]*)?"
    r"(?:\?(?P<query>.*))?"
)
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::(?P<port>\d*))?")


def parse_url(url: str) -> URL:
    """The URL. Hosts may be several, `postgresql://h1:5432,h2:5432/db?target_session_attrs=read-write`: the driver
    then tries one after the other. Raises `ConfigurationError` for what is no URL."""
    if url.startswith("postgres://"):
        url = "postgresql" + url.removeprefix("postgres")
    try:
        return make_url(_with_hosts_in_query(url))
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            "the database's URL cannot be read: expected sqlite:////path/oakum.db, postgresql://user@host:5432/db "
            "or postgresql://user@host1:5432,host2:5432/db?target_session_attrs=read-write; a password with one "
            "of @:/?#[] in it has to be percent-encoded"
        ) from error


def _with_hosts_in_query(url: str) -> str:
    """The URL with several hosts as SQLAlchemy takes them; any other as it is."""
    several = _SEVERAL.fullmatch(url)
    if several is None:
        return url
    matches = [_HOST.fullmatch(one) for one in several["hosts"].split(",")]
    if not all(matches):
        return url
    hosts = ",".join(one["host"].strip("[]") for one in matches if one)
    ports = ",".join(one["port"] or "5432" for one in matches if one)
    query = "&".join(filter(None, [f"host={hosts}", f"port={ports}", several["query"]]))
    return f"{several['begin']}{several['user'] or ''}{several['name'] or '/'}?{query}"
