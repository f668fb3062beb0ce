"""Versions of Slurm, and how each is asked."""

from __future__ import annotations

from typing import Literal

import pytest

from cells import each
from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.reading.versions import Dialect, SlurmVersion, choose_dialect


@each(
    ("text", "version"),
    [
        ("slurm 23.02.7\n", "23.02.7"),
        ("slurm-wlm 22.05.8", "22.05.8"),
        ("slurm 24.05.0-0rc1", "24.05.0-0rc1"),
        ("25.11.0", "25.11.0"),
        ("slurm 20.11", "20.11"),
    ],
)
def test_versions_are_read(text: str, version: str) -> None:
    assert str(SlurmVersion.parse(text, "`scontrol --version`")) == version


def test_what_is_no_version_is_an_error_that_names_the_call() -> None:
    with pytest.raises(PayloadError, match=r"`scontrol --version` answered 'PBS'"):
        SlurmVersion.parse("PBS", "`scontrol --version`")


@each(
    ("version", "wanted", "json_option"),
    [
        ("20.11.9", "auto", None),
        ("20.11.9", "json", None),
        ("21.08.8", "auto", None),
        ("22.05.8", "auto", None),
        ("22.05.8", "json", "--json"),
        ("23.02.7", "auto", "--json"),
        ("23.11.1", "auto", "--json=v0.0.40"),
        ("24.05.1", "auto", "--json=v0.0.41"),
        ("24.11.1", "auto", "--json=v0.0.42"),
        ("25.05.1", "auto", "--json=v0.0.43"),
        ("25.11.1", "auto", "--json=v0.0.44"),
        ("26.05.0", "auto", "--json=v0.0.44"),
        ("25.11.1", "text", None),
    ],
)
def test_each_version_is_asked_for_what_it_can_tell(
    version: str, wanted: Literal["auto", "json", "text"], json_option: str | None
) -> None:
    dialect = choose_dialect(SlurmVersion.parse(version, "test"), wanted)
    assert (dialect.json_option if dialect.json else None) == json_option


def test_only_what_scontrol_speaks_is_asked_of_it() -> None:
    assert not Dialect(SlurmVersion(22, 5), json=True).whole_json
    assert Dialect(SlurmVersion(23, 2), json=True).whole_json


def test_the_parser_can_be_pinned() -> None:
    assert choose_dialect(SlurmVersion(25, 11), "auto", "v0.0.42").json_option == "--json=v0.0.42"
