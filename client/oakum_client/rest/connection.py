"""The HTTP calls of a client: tries, answers and refusals."""

from __future__ import annotations

import itertools
import json
import re
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from oakum_client.rest.address import Address
from oakum_client.rest.errors import (
    ApiError,
    ClientError,
    NotConfigured,
    ServiceUnreachable,
    UnexpectedAnswer,
)
from oakum_service.api.schemas.problems import ProblemDetails
from oakum_service.errors import ConfigurationError
from oakum_service.logs.plain_text import plain
from oakum_service.network.tls import client_context

Document = TypeVar("Document", bound=BaseModel)

_READ_ATTEMPTS = 3
_FIRST_BACKOFF_S = 0.1
_ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")


class Connection:
    """HTTP calls to the service at one address. Answers come as documents of the types asked for. Raises a
    `ClientError` where a call does not succeed; `stream` raises httpx's errors too."""

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        transport: httpx.BaseTransport | None = None,
        *,
        for_terminal: bool = False,
    ) -> None:
        """`timeout_s`: the longest silence of the service during a call. `transport` replaces the network, for
        tests. Texts are made `plain` where they are `for_terminal`. Raises `NotConfigured` for a file of
        authorities that cannot be used."""
        self.address = address
        self._for_terminal = for_terminal
        self._http = httpx.Client(
            base_url=address.base_url,
            headers={"Authorization": f"Bearer {address.token}"} if address.token else {},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
            transport=transport or _over(address),
            verify=_verification(address),
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, path: str, document: type[Document], **query: Any) -> Document:
        """Read a document. A read that finds no service is repeated twice; one that times out is not."""
        params = {name: value for name, value in query.items() if value is not None}
        for attempt in itertools.count(1):
            try:
                answer = self._http.get(path, params=params)
                break
            except httpx.TransportError as error:
                if attempt == _READ_ATTEMPTS or isinstance(error, httpx.TimeoutException):
                    raise self.unreachable(error) from error
                time.sleep(_FIRST_BACKOFF_S * 2**attempt)
        return self._read(answer, document)

    def write(
        self,
        method: str,
        path: str,
        document: type[Document],
        body: BaseModel | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        """Make a change once; returns the document of the answer."""
        return self._read(self._send(method, path, body, idempotency_key), document)

    def command(self, method: str, path: str, body: BaseModel | None = None) -> None:
        """Make a call once whose answer has no document."""
        answer = self._send(method, path, body)
        if not answer.is_success:
            raise self._refusal(answer)

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str], silence_s: float) -> Iterator[httpx.Response]:
        """Context of an answer that is read while it comes. Raises httpx's `TransportError` where the service
        cannot be reached, or sends nothing for `silence_s` seconds."""
        timeout = httpx.Timeout(10.0, read=silence_s)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if not answer.is_success:
                answer.read()
                raise self._refusal(answer)
            yield answer

    def parse(self, content: bytes, document: type[Document]) -> Document:
        """The document in an answer's content. Raises `UnexpectedAnswer` where it is none."""
        try:
            return document.model_validate_json(_plain_texts(content) if self._for_terminal else content)
        except ValidationError as error:
            raise UnexpectedAnswer(
                f"{self._where()} answered something that is not a {document.__name__} document. "
                "Check that it is an Oakum service and that client and service have the same version."
            ) from error

    def unreachable(self, error: httpx.TransportError) -> ServiceUnreachable:
        """The client's error for one of httpx, with what to do about it."""
        if isinstance(error, httpx.ReadTimeout):
            return ServiceUnreachable(
                f"{self._where()} accepted the call and did not answer in time. Look at the service's log."
            )
        cause = _ERROR_NUMBER.sub("", str(error)) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in cause:
            return ServiceUnreachable(
                f"What answers at {self._where()} has a certificate that is not trusted here: {cause}. If "
                "it is the service, name the authority that has signed the certificate, a PEM file, in "
                "OAKUM_CA_FILE."
            )
        return ServiceUnreachable(
            f"No service answers at {self._where()}: {cause}. Start one with `make run` or `oakum serve`, "
            "or set OAKUM_URL to where it runs."
        )

    def _send(
        self, method: str, path: str, body: BaseModel | None, idempotency_key: str | None = None
    ) -> httpx.Response:
        content = None if body is None else body.model_dump_json(exclude_unset=True)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            return self._http.request(method, path, content=content, headers=headers)
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    def _read(self, answer: httpx.Response, document: type[Document]) -> Document:
        if not answer.is_success:
            raise self._refusal(answer)
        return self.parse(answer.content, document)

    def _refusal(self, answer: httpx.Response) -> ClientError:
        try:
            problem = self.parse(answer.content, ProblemDetails)
        except UnexpectedAnswer:
            return UnexpectedAnswer(
                f"{self._where()} answered {answer.status_code} {answer.reason_phrase} and says no more. "
                "Check that it is the address of an Oakum service."
            )
        return ApiError(problem, self._advice(answer.status_code))

    def _advice(self, status: int) -> str:
        if status == 401 and self.address.token is None:
            return "Set OAKUM_TOKEN to the token that `oakum serve` printed."
        if status == 401:
            return "The token in use is not valid there; set OAKUM_TOKEN to one that is (`oakum token`)."
        return ""

    def _where(self) -> str:
        return f"{self.address.url} ({self.address.source})"


def _plain_texts(content: bytes) -> bytes:
    """The document in JSON with all its texts made `plain`; what is no JSON as it is."""
    try:
        return json.dumps(_plain(json.loads(content))).encode()
    except (ValueError, RecursionError):
        return content


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {plain(name): _plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def _over(address: Address) -> httpx.BaseTransport | None:
    return None if address.socket is None else httpx.HTTPTransport(uds=address.socket)


def _verification(address: Address) -> ssl.SSLContext | bool:
    """What httpx needs to check the service's certificate. Raises `NotConfigured` for a file of authorities that
    cannot be used."""
    if address.ca_file is None:
        return True
    try:
        return client_context(address.ca_file)
    except ConfigurationError as error:
        raise NotConfigured(str(error)) from error
