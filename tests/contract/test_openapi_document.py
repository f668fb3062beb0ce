"""The committed OpenAPI document is the code's."""

from __future__ import annotations

import json
import re
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from api_under_test import SPEC, ApiUnderTest
from cells import each
from oakum_service import api as api_package
from oakum_service.app import routed_app
from openapi_document import openapi_document

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


def test_the_committed_document_is_the_code_s_and_the_service_answers_with_it(api: ApiUnderTest) -> None:
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    assert committed == openapi_document(), "the REST API has changed: run `make openapi` and read the difference"
    served = api.admin.get("/openapi.json").json()
    assert {**served, "info": committed["info"]} == committed


def test_a_module_with_a_router_serves_its_routes_without_being_named_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
from fastapi import APIRouter

router = APIRouter(prefix="/v1/announcements")


@router.get("")
def list_announcements() -> list[str]:
    return []
"""
    (tmp_path / "announcements.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(api_package, "__path__", [*api_package.__path__, str(tmp_path)])
    try:
        assert "/v1/announcements" in routed_app().openapi()["paths"]
    finally:
        sys.modules.pop("oakum_service.api.announcements", None)


ANSWERS: list[tuple[int, str, str, dict[str, Any]]] = [
    (200, "GET", "/v1/trainers/digits", {}),
    (201, "POST", "/v1/trainers", {"json": SPEC | {"name": "other"}}),
    (204, "DELETE", "/v1/quotas/ulla", {}),
    (400, "GET", "/v1/holes?before=1763884416.25_7f-a", {}),
    (401, "GET", "/v1/nodes", {"headers": {"Authorization": "Bearer unknown"}}),
    (404, "GET", "/v1/trainers/nobody", {}),
    (404, "POST", "/v1/trainers?begin_from=nobody", {"json": SPEC | {"name": "new"}}),
    (404, "GET", "/v1/notices?trainer=nobody", {}),
    (404, "GET", "/v1/plans/current", {}),
    (409, "POST", "/v1/trainers", {"json": SPEC}),
    (409, "POST", "/v1/cluster/foreground-jobs", {"json": {"nodes": 1, "run_s": 5.0}}),
    (412, "POST", "/v1/trainers/digits/cancel", {"headers": {"If-Match": '"old"'}}),
    (413, "POST", "/v1/trainers", {"content": b"x" * 40_000_000}),
    (422, "PATCH", "/v1/trainers/digits", {"json": {"max_nodes": 0}}),
    (422, "GET", "/v1/events/recent?limit=many", {}),
]


@each(("status", "method", "address", "request_"), ANSWERS)
def test_the_document_names_the_status_of_an_answer(
    api: ApiUnderTest, status: int, method: str, address: str, request_: dict[str, Any]
) -> None:
    if "digits" not in api.trainer_names():
        api.submit()
    answer = api.admin.request(method, address, **request_)
    if answer.status_code != status:
        pytest.fail(f"{method} {address}: {answer.status_code}, expected {status}: {answer.text[:200]}")
    paths = json.loads(COMMITTED.read_text(encoding="utf-8"))["paths"]
    plain = address.partition("?")[0]
    found = sorted((path for path in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), plain)), key=len)
    path = plain if plain in paths else found[0]
    documented = paths[path][method.lower()]["responses"][str(status)]
    if status >= HTTPStatus.BAD_REQUEST:
        assert documented["$ref"].startswith("#/components/responses/")
        assert answer.headers["Content-Type"] == "application/problem+json"
