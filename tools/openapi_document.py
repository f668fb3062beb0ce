"""Prints the REST API's OpenAPI document as it is committed in docs/openapi.json."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from oakum_service.app import routed_app

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def openapi_document() -> dict[str, Any]:
    """What `/openapi.json` answers, with the version of this source tree, whichever is installed."""
    document = routed_app().openapi()
    document["info"]["version"] = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    return document


if __name__ == "__main__":
    print(json.dumps(openapi_document(), indent=1, ensure_ascii=False))
