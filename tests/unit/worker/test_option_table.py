"""docs/trainer/README.md has a row for each option of a spec, with the default that the spec has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from oakum_worker.spec import TrainerSpec
from oakum_worker.spec_errors import _part

PAGE = Path(__file__).parents[3] / "docs" / "trainer" / "README.md"
_ROW = re.compile(r"^\| `([\w.]+)` \| (?:\\\||[^|])+ \| (`[^`]*`|none|required) \|", re.MULTILINE)


def test_each_option_has_its_row_and_default() -> None:
    rows = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len(rows) == len(dict(rows))
    assert dict(rows) == dict(_options(TrainerSpec))


def _options(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each option that is no part of the spec with options of its own, and its default as the page shows it."""
    for name, field in model.model_fields.items():
        if (part := _part(field.annotation)) is not None:
            yield from _options(part, f"{prefix}{name}.")
        else:
            yield prefix + name, _shown(field.get_default(call_default_factory=True))


def _shown(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    if default in (None, "", (), {}):
        return "none"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"
