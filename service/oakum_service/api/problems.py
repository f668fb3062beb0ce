"""Turns every error into a problem document (RFC 9457)."""

from __future__ import annotations

import logging
from http import HTTPStatus

from anyio import BrokenResourceError, ClosedResourceError
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError, TimeoutError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from oakum_service.api.request_ids import HEADER, id_of
from oakum_service.api.schemas.problems import ProblemDetails
from oakum_service.db.writability import is_busy
from oakum_service.errors import Forbidden, RequestError, ServiceError, TooManyRequests, Unauthorized
from oakum_service.identity import audit
from oakum_worker.errors import fault_of

_log = logging.getLogger("oakum")
_RETRY_AFTER_S = "5"
_MOST_FAULTS, _LONGEST_LINE = 50, 1000
"""Most faults of one request that are told, and the most characters of each: nobody reads more."""


def problem_response(status: int, detail: str, errors: list[str] | None = None) -> JSONResponse:
    """A problem document as a response. Long texts are cut, since they may repeat what was sent."""
    problem = ProblemDetails(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_unicode(_cut(detail)),
        errors=[_unicode(_cut(line)) for line in errors or []],
    )
    headers = {"Retry-After": _RETRY_AFTER_S} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return JSONResponse(problem.model_dump(), status, headers, media_type="application/problem+json")


def _unicode(text: str) -> str:
    """The text, in which U+FFFD stands for halves of surrogate pairs, which an agent's report may have in it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class QuietDisconnects:
    """Middleware: a client that leaves an event stream is logged at the level debug, not as an error of the
    service."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; errors of writing to a stream that nobody reads any more are dropped."""
        try:
            await self._app(scope, receive, send)
        except* (BrokenResourceError, ClosedResourceError):
            _log.debug("the client of %s has gone", scope.get("path"))


def install(app: FastAPI) -> None:
    """Add handlers to the app that turn every error of its routes into a problem document."""
    app.add_middleware(QuietDisconnects)
    app.exception_handler(RequestError)(_request_error)
    app.exception_handler(RequestValidationError)(_validation_error)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(ServiceError)(_service_error)
    app.exception_handler(DBAPIError)(_database_error)
    app.exception_handler(TimeoutError)(_no_connection)
    app.exception_handler(Exception)(_unexpected)


def _request_error(request: Request, error: RequestError) -> JSONResponse:
    response = problem_response(error.status, str(error))
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, TooManyRequests):
        response.headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, Forbidden):
        _record_refusal(request, error)
    return response


def _validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
    faults = error.errors()
    lines = [_line(dict(item)) for item in faults[:_MOST_FAULTS]]
    if len(faults) > _MOST_FAULTS:
        lines.append(f"and {len(faults) - _MOST_FAULTS:,} more faults")
    return problem_response(
        HTTPStatus.UNPROCESSABLE_ENTITY, "the request is not valid: see `errors` for what to change", lines
    )


def _http_error(_: Request, error: HTTPException) -> JSONResponse:
    detail = str(error.detail)
    if isinstance(error.__cause__, (ValueError, RecursionError)):  # FastAPI's words leave out what is wrong
        detail = f"the body cannot be read as JSON: {error.__cause__}"
    response = problem_response(error.status_code, detail)
    response.headers.update(error.headers or {})
    return response


def _service_error(_: Request, error: ServiceError) -> JSONResponse:
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


def _database_error(request: Request, error: DBAPIError) -> JSONResponse:
    if (fault := request.app.state.context.writability.fault) is not None:
        return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, fault)
    if is_busy(error.orig):
        _log.warning("%s %s: %s", request.method, request.url.path, error.orig)
        return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "the database is busy: try again in a moment")
    return _unexpected(request, error)


def _no_connection(request: Request, error: TimeoutError) -> JSONResponse:
    _log.warning("%s %s: %s", request.method, request.url.path, error)
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "the database does not answer: try again later")


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    # This runs outside of the middleware that puts the id into answers.
    request_id = id_of(request.scope)
    _log.error(
        "%s %s (request %s) failed",
        request.method,
        request.url.path,
        request_id,
        exc_info=error,
        extra={"fields": {"request": request_id}},
    )
    detail = f"an error of the service's own; see its log of request {request_id}"
    response = problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, detail)
    response.headers[HEADER] = request_id
    return response


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} ..."


def _record_refusal(request: Request, error: Forbidden) -> None:
    """Write a refusal to the audit log, a few for each token in a minute; a database that cannot be written to
    changes nothing about the answer."""
    principal = getattr(request.state, "principal", None)
    if principal is None:
        return
    try:
        request.app.state.refusals.count(principal.digest)
        with request.app.state.context.sessions.begin() as session:
            audit.record_refusal(session, principal.actor, f"{request.method} {request.url.path}", str(error))
    except TooManyRequests:
        pass
    except DBAPIError as fault:
        _log.warning("a refusal is missing from the audit log: %s", fault.orig)


def _line(item: dict[str, object]) -> str:
    location = item["loc"]
    assert isinstance(location, tuple)
    if location[0] == "body" and item["type"] == "json_invalid":
        context = item["ctx"]
        assert isinstance(context, dict)
        return f"body: not JSON, at character {location[1]}: {context['error']}"
    if location == ("body",) and item["type"] not in ("missing", "value_error"):
        return "body: expected a JSON object, sent with Content-Type: application/json"
    where = ".".join(str(part) for part in location if part != "body") or "body"
    return f"{where}: {fault_of(item)}"
