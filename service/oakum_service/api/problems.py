"""Errors as problem details (RFC 9457), whatever raised them."""

from __future__ import annotations

import logging
from http import HTTPStatus

from anyio import BrokenResourceError, ClosedResourceError
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from oakum_service.api.schemas import Problem
from oakum_service.errors import RequestError, ServiceError, Unauthorized

_log = logging.getLogger("oakum")


def problem_response(status: int, detail: str, errors: list[str] | None = None) -> JSONResponse:
    """A problem document as a response."""
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors or [])
    return JSONResponse(problem.model_dump(), status_code=status, media_type="application/problem+json")


class QuietDisconnects:
    """Takes a client that leaves an event stream for what it is: no error of the service's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; what the stream's pipes say when nobody reads any more ends here."""
        try:
            await self._app(scope, receive, send)
        except* (BrokenResourceError, ClosedResourceError):
            _log.debug("the client of %s has gone", scope.get("path"))


def install(app: FastAPI) -> None:
    """Turn every error of the app's routes into a problem document."""
    app.add_middleware(QuietDisconnects)

    @app.exception_handler(RequestError)
    def _request_error(_: Request, error: RequestError) -> JSONResponse:
        response = problem_response(error.status, str(error))
        if isinstance(error, Unauthorized):
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    @app.exception_handler(RequestValidationError)
    def _validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
        lines = [_line(dict(item)) for item in error.errors()]
        return problem_response(
            HTTPStatus.UNPROCESSABLE_ENTITY, "the request is not valid: see `errors` for what to change", lines
        )

    @app.exception_handler(HTTPException)
    def _http_error(_: Request, error: HTTPException) -> JSONResponse:
        response = problem_response(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(ServiceError)
    def _service_error(_: Request, error: ServiceError) -> JSONResponse:
        return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    @app.exception_handler(Exception)
    def _unexpected(request: Request, error: Exception) -> JSONResponse:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, "an error of the service's own; see its log")


def _line(item: dict[str, object]) -> str:
    location = item["loc"]
    assert isinstance(location, tuple)
    if location[0] == "body" and item["type"] == "json_invalid":
        context = item["ctx"]
        assert isinstance(context, dict)
        return f"body: not JSON, at character {location[1]}: {context['error']}"
    if location == ("body",) and item["type"] != "missing":
        return "body: expected a JSON object, sent with Content-Type: application/json"
    where = ".".join(str(part) for part in location if part != "body") or "body"
    return f"{where}: {str(item['msg']).removeprefix('Value error, ')}"
