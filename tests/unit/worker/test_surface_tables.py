"""Tables of what becomes of a library's names, with a library made up for it; docs/libraries.md shows the real."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cells import each
from library_page import library_page
from oakum.surface.tables import Surface, unknown_arguments
from oakum.surface.verdicts import Means, Refused, Supported, means, merged, refused, supported
from oakum_worker.errors import TrainingWarning

PAGE = Path(__file__).parents[3] / "docs" / "libraries.md"


class Pet:
    def __init__(self, name: str, legs: int = 4, *, colour: str | None = None) -> None: ...

    def feed(self) -> None: ...

    def _sleep(self) -> None: ...


@dataclass
class Habits:
    food: str = "fish"
    sleeps: bool = True
    toys: list[str] = field(default_factory=list)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("pets")
    Pet.__module__ = Habits.__module__ = "pets"
    module.Pet, module.Habits = Pet, Habits
    monkeypatch.setitem(sys.modules, "pets", module)


def test_a_group_of_names_shares_an_answer_and_no_name_has_two() -> None:
    table = merged(supported("a b"), refused("c", "take a", given="1"), means("d", "sleeps"))
    assert table == {"a": Supported(), "b": Supported(), "c": Refused("take a", "1"), "d": Means("sleeps")}
    with pytest.raises(ValueError, match="named twice: a"):
        merged(table, refused("a", "take b"))
    with pytest.raises(ValueError, match="a name twice"):
        supported("a b a")


@each(
    ("surface", "names"),
    [
        (Surface("pets:Pet", "arguments", {}), {"name", "legs", "colour"}),
        (Surface("pets:Pet", "members", {}), {"feed"}),
        (Surface("pets:Pet.feed", "arguments", {}), set()),
        (Surface("pets:Habits", "fields", {}), {"food", "sleeps", "toys"}),
    ],
)
def test_the_names_are_those_of_the_library(surface: Surface, names: set[str]) -> None:
    assert surface.names_of_library() == names


def test_what_may_be_overridden_has_private_names_and_attributes_are_an_objects() -> None:
    assert {"feed", "_sleep"} <= Surface("pets:Pet", "overrides", {}).names_of_library()
    with pytest.raises(ValueError, match="those of an object"):
        Surface("pets:Pet", "attributes", {}).names_of_library()


class Odd:
    """A value that nothing can be compared to, as an array of several elements."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")


@each(
    ("given", "unknown"),
    [
        ({"legs": 3}, ["legs"]),
        ({"legs": 4}, []),
        ({"legs": Odd()}, ["legs"]),
        ({"colour": "grey"}, []),  # known
        ({"name": "Tom", "owner": "me"}, []),  # none of the library's arguments with a default
    ],
)
def test_unknown_is_what_is_given_and_is_not_the_default(given: Any, unknown: list[str]) -> None:
    surface = Surface("pets:Pet", "arguments", supported("colour"))
    assert unknown_arguments(surface.table, given, surface.defaults()) == unknown


def test_an_unknown_field_is_warned_of_by_its_name(recwarn: pytest.WarningsRecorder) -> None:
    surface = Surface("pets:Habits", "fields", supported("food"))
    surface.warn_of_unknown_arguments({"food": "meat", "sleeps": True, "toys": []})
    assert not recwarn.list
    with pytest.warns(TrainingWarning, match=r"the argument toys of pets\.Habits.* number of nodes"):
        surface.warn_of_unknown_arguments({"toys": ["ball"]})


def test_the_page_shows_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == library_page(), (
        "write it anew: .venv/bin/python tools/library_page.py > docs/libraries.md"
    )
