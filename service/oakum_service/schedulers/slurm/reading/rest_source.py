"""Reads Slurm's state from slurmrestd, over HTTP with a JWT or over a unix socket of the same user."""

from __future__ import annotations

import getpass
import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

import httpx
import msgspec

from oakum_service.config import SlurmSettings
from oakum_service.errors import ConfigurationError, PayloadError, SchedulerError
from oakum_service.schedulers.slurm.calls import counted
from oakum_service.schedulers.slurm.reading import payloads, reservations
from oakum_service.schedulers.slurm.reading.fields import Number, number
from oakum_service.schedulers.slurm.reading.payloads import Origin, ParsedAnswer, to_state
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation, SlurmState
from oakum_service.schedulers.slurm.reading.versions import PARSERS, POOR_PARSERS
from oakum_worker.errors import reason_of

MOST_BYTES = 2**30
"""Limit for one answer; 20,000 jobs on large nodes need a third of it."""
_SHOWN = 300
_log = logging.getLogger(__name__)

Value = TypeVar("Value")


class RestSource:
    """A `StateSource` that asks slurmrestd. Nodes are read before jobs, so that a job that starts in between is
    seen twice rather than missed.

    Raises `ConfigurationError` if the settings have no valid address of slurmrestd.
    """

    def __init__(
        self,
        settings: SlurmSettings,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._clock = clock
        socket, self._base_url = _address(settings.rest_url)
        self._is_socket = socket is not None
        self._client = httpx.Client(
            transport=transport or httpx.HTTPTransport(uds=socket),
            timeout=settings.command_timeout_s,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )
        self._version = "unknown"
        self._warned = False
        self._forget()

    def _forget(self) -> None:
        self._parser: str | None = None
        self._nodes: ParsedAnswer[SlurmNode] = ParsedAnswer(())
        self._jobs: ParsedAnswer[SlurmJob] = ParsedAnswer(())
        self._reservations: ParsedAnswer[SlurmReservation] = ParsedAnswer(())
        self._reservations_at: float | None = None

    def read(self) -> SlurmState:
        """Read the present state. Raises `SchedulerError`; the next call then looks the parser up again, since
        Slurm may have been upgraded."""
        try:
            return self._read()
        except SchedulerError:
            self._forget()
            raise

    def ping(self) -> None:
        """Ask slurmrestd for a `ping` of slurmctld. Raises `SchedulerError` if either does not answer."""
        body, origin = self._get(self._known_parser(), "ping")
        _refuse_silence(body or b"{}", origin)

    def cycle_s(self) -> float | None:
        """Seconds of the main scheduler's last cycle, from `diag`; None if it does not tell."""
        try:
            body, origin = self._get(self._known_parser(), "diag")
            return _cycle_s(body or b"", origin)
        except SchedulerError:
            return None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _read(self) -> SlurmState:
        parser = self._known_parser()
        taken_at = self._clock()
        self._nodes = self._update(parser, "nodes", payloads.read_nodes, self._nodes)
        self._jobs = self._update(parser, "jobs", payloads.read_jobs, self._jobs)
        if reservations.are_old(self._reservations_at, taken_at):
            self._reservations = self._update(
                parser, "reservations", payloads.read_reservations, self._reservations
            )
            self._reservations_at = taken_at
        return to_state(taken_at, self._version, self._nodes, self._jobs, self._reservations)

    def _update(
        self,
        parser: str,
        what: str,
        read: Callable[[bytes, Origin], ParsedAnswer[Value]],
        last: ParsedAnswer[Value],
    ) -> ParsedAnswer[Value]:
        """Read data that may not have changed: returns `last` if slurmctld says that nothing has changed since,
        else the answer as `read` parses it."""
        since = f"?update_time={last.updated_at}" if last.updated_at else ""
        body, origin = self._get(parser, what, since)
        return last if body is None else read(body, origin)

    def _known_parser(self) -> str:
        """The configured parser, or the newest for which slurmrestd answers a `ping`; looked up once. Raises
        `SchedulerError` where slurmrestd has none of them."""
        if self._parser is not None:
            return self._parser
        asked = [self._settings.parser] if self._settings.parser else PARSERS
        for parser in asked:
            try:
                body, origin = self._get(parser, "ping")
            except _NotThere:
                continue
            self._version = payloads.read_version(body or b"{}", origin)
            self._parser = parser
            if parser in POOR_PARSERS and not self._warned:
                self._warned = True
                _log.warning(
                    "slurmrestd's parser %s does not tell where pending jobs are planned to start, nor before "
                    "22.05 that a node is PLANNED or POWERED_DOWN: OAKUM_SLURM_STATE=cli reads more",
                    parser,
                )
            return parser
        raise SchedulerError(
            f"slurmrestd at {self._settings.rest_url} has none of the parsers {', '.join(asked)}: set "
            "OAKUM_SLURM_PARSER to one that it has (`slurmrestd -d list`), or OAKUM_SLURM_STATE=cli"
        )

    def _get(self, parser: str, what: str, query: str = "") -> tuple[bytes | None, Origin]:
        """(an answer's body, its origin for messages); the body is None if nothing has changed. Raises
        `SchedulerError` where slurmrestd does not answer or refuses."""
        path = f"/slurm/{parser}/{what}{query}"
        origin = Origin(f"GET {self._settings.rest_url}{path}", parser)
        with counted(f"rest {what}"):
            try:
                with self._client.stream("GET", self._base_url + path, headers=self._credentials()) as response:
                    body = self._body(response, origin)
            except httpx.HTTPError as error:
                raise SchedulerError(f"{origin.call} failed: {error or type(error).__name__}") from error
            if response.status_code == httpx.codes.NOT_MODIFIED:
                return None, origin
            if response.status_code != httpx.codes.OK:
                raise _refusal(response.status_code, body, origin)
            return body, origin

    def _body(self, response: httpx.Response, origin: Origin) -> bytes:
        """Read an answer's body. Raises `SchedulerError` where it is too large, or all of it takes longer than the
        time limit; the HTTP client's own limit applies to each piece only."""
        deadline = time.monotonic() + self._settings.command_timeout_s
        pieces, size = [], 0
        for piece in response.iter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise SchedulerError(f"{origin.call} answered with more than {MOST_BYTES >> 20} MiB")
            if time.monotonic() > deadline:
                raise SchedulerError(
                    f"{origin.call} was given up after {self._settings.command_timeout_s:g} s and {size} bytes: "
                    "OAKUM_SLURM_COMMAND_TIMEOUT_S allows it more"
                )
        return b"".join(pieces)

    def _credentials(self) -> dict[str, str]:
        """HTTP headers with the present JWT, which is read again for each call; none for a socket without one.
        Raises `SchedulerError` where a JWT is needed and missing."""
        token = self._token()
        if token:
            return {
                "X-SLURM-USER-NAME": self._settings.rest_user or getpass.getuser(),
                "X-SLURM-USER-TOKEN": token,
            }
        if self._is_socket:
            return {}  # over a socket, slurmrestd identifies us by our user id
        raise SchedulerError(
            f"slurmrestd at {self._settings.rest_url} wants a JWT: write one (`scontrol token`) to the file that "
            "OAKUM_SLURM_JWT_FILE names, or set SLURM_JWT"
        )

    def _token(self) -> str:
        path = self._settings.jwt_file
        if path is None:
            return os.environ.get("SLURM_JWT", "")
        try:
            return path.read_text().strip().removeprefix("SLURM_JWT=")
        except (OSError, UnicodeDecodeError) as error:
            raise SchedulerError(
                f"the JWT cannot be read: {reason_of(error)}; see OAKUM_SLURM_JWT_FILE"
            ) from error


class _NotThere(SchedulerError):  # noqa: N818
    """slurmrestd has no such path, so it does not have the parser in it."""


class _Statistics(msgspec.Struct):
    schedule_cycle_last: Number = None


class _Diagnosis(msgspec.Struct):
    statistics: _Statistics


def _refuse_silence(body: bytes, origin: Origin) -> None:
    """Raise `SchedulerError` if slurmrestd answers that no slurmctld does."""
    payloads.read_version(body, origin)
    pings = msgspec.json.decode(body).get("pings") or []
    # The second name is that of 23.11 and later.
    told = [ping.get("ping") or ping.get("pinged") for ping in pings if isinstance(ping, dict)]
    if told and all(answer == "DOWN" for answer in told):
        raise SchedulerError(f"{origin.call}: slurmrestd answers, slurmctld is DOWN")


def _cycle_s(body: bytes, origin: Origin) -> float | None:
    try:
        micros = number(msgspec.json.decode(body, type=_Diagnosis).statistics.schedule_cycle_last)
    except msgspec.DecodeError as error:
        raise PayloadError(f"{origin} cannot be read: {error}") from error
    return None if micros is None else micros / 1e6


def _address(rest_url: str) -> tuple[str | None, str]:
    """(path of the unix socket, or None for HTTP; beginning of every URL). Raises `ConfigurationError` for an
    address of neither form."""
    if rest_url.startswith("unix:"):
        return rest_url.removeprefix("unix:").removeprefix("//"), "http://slurmrestd"
    if rest_url.startswith(("http://", "https://")):
        return None, rest_url.rstrip("/")
    raise ConfigurationError(
        f"OAKUM_SLURM_REST_URL is {rest_url!r}, expected http://host:6820 or unix:/run/slurmrestd/socket"
    )


def _refusal(status: int, body: bytes, origin: Origin) -> SchedulerError:
    message = f"{origin.call} answered with status {status}: {_error_text(body)}"
    if status == httpx.codes.NOT_FOUND:
        return _NotThere(message)
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.INTERNAL_SERVER_ERROR):
        # 22.05 answers 500 to an expired JWT.
        message += "; if the JWT may have run out, renew it (`scontrol token`), for the user OAKUM_SLURM_REST_USER"
    return SchedulerError(message)


def _error_text(body: bytes) -> str:
    """slurmrestd's error message, from JSON or a line of text."""
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        document = None
    errors = document.get("errors") if isinstance(document, dict) else None
    return payloads.errors_text(errors) if errors else body[:_SHOWN].decode(errors="replace").strip() or "nothing"
