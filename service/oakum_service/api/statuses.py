"""Every status that a route may answer with, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from oakum_service.api.schemas.problems import ProblemDetails

_MEANINGS = {
    HTTPStatus.BAD_REQUEST: "The request cannot be read.",
    HTTPStatus.UNAUTHORIZED: "No token, an unknown one, or one that has expired.",
    HTTPStatus.FORBIDDEN: "The token's role, the trainer's owner or a quota does not allow it.",
    HTTPStatus.NOT_FOUND: "There is no such thing.",
    HTTPStatus.CONFLICT: "The state of the thing does not allow it.",
    HTTPStatus.GONE: "The fragment has ended.",
    HTTPStatus.PRECONDITION_FAILED: "The thing has changed: its ETag is not among those of `If-Match`.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too long.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "The request is not valid: `errors` says what to change.",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many requests of this token: `Retry-After` says for how long to wait.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "An error of the service's own.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The database cannot be written or read at present: try again later.",
}
_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
_CHANGES = ("post", "put", "patch", "delete")


def document_statuses(app: FastAPI) -> None:
    """Have the app's OpenAPI document name every status of each route under /v1, with problem documents as their
    bodies."""
    plain: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        components = document["components"]
        if "responses" not in components:  # the document is kept and asked for again
            components["responses"] = {
                _name(status): {"description": meaning, "content": _PROBLEM}
                for status, meaning in _MEANINGS.items()
            }
            components["schemas"]["ProblemDetails"] = ProblemDetails.model_json_schema()
            for path, operations in document["paths"].items():
                if path.startswith("/v1/"):
                    for method, operation in operations.items():
                        for status in _statuses(path, method, operation):
                            reference = {"$ref": f"#/components/responses/{_name(status)}"}
                            operation["responses"][str(status.value)] = reference
            for unused in ("HTTPValidationError", "ValidationError"):
                components["schemas"].pop(unused, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _name(status: HTTPStatus) -> str:
    return status.name.title().replace("_", "")


def _statuses(path: str, method: str, operation: dict[str, Any]) -> Iterator[HTTPStatus]:
    """The statuses of errors that an operation may answer with."""
    yield from (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
    yield from (HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE)
    parameters = operation.get("parameters", [])
    names = {parameter["name"] for parameter in parameters}
    if parameters or "requestBody" in operation:
        yield from (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
    if "{" in path or path.endswith(("/current", "/preview")) or names & {"begin_from", "trainer"}:
        yield HTTPStatus.NOT_FOUND
    if method in _CHANGES:
        yield HTTPStatus.CONFLICT
    if path.startswith("/v1/fragments/"):
        yield HTTPStatus.GONE
    if "If-Match" in names:
        yield HTTPStatus.PRECONDITION_FAILED
    if "requestBody" in operation:
        yield HTTPStatus.REQUEST_ENTITY_TOO_LARGE
