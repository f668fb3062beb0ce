"""The service's exceptions.

ServiceError
├── ConfigurationError   the service cannot run with these settings or in this place
├── LeaseLost            another controller writes now; this one must write nothing more
├── SchedulerError       the scheduler refused or did not answer
│   ├── CommandFailed        a command of the scheduler ended with an error, or was too slow
│   ├── PayloadError         the scheduler's answer cannot be read
│   └── SubmissionRefused    a submission was refused, in the words of whoever refused it
├── NoticeFailed         an attempt to deliver a notice failed; another one may succeed
│   └── NoticeRefused        no further attempt can succeed
└── RequestError         a request cannot be carried out; `status` is its HTTP status
    ├── NotFound             404
    ├── Conflict             409
    ├── NoLongerWanted       410
    ├── Forbidden            403
    ├── Unauthorized         401
    ├── Busy                 429
    └── TooManyRequests      429
"""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar


class ServiceError(Exception):
    """The service cannot do what it was asked."""


class ConfigurationError(ServiceError):
    """The service cannot run as configured."""


class LeaseLost(ServiceError):  # noqa: N818
    """Another controller holds the lease: this one must write nothing more."""


class SchedulerError(ServiceError):
    """The scheduler refused or did not answer."""


class CommandFailed(SchedulerError):  # noqa: N818
    """A command of the scheduler ended with an error; `last_line` is the last line that it wrote to stderr."""

    def __init__(self, message: str, *, last_line: str = "") -> None:
        super().__init__(message)
        self.last_line = last_line


class PayloadError(SchedulerError):
    """The scheduler's answer cannot be read; the message names the call, the node or job, the field and its
    value."""


class SubmissionRefused(SchedulerError):  # noqa: N818
    """The scheduler, or what submits to it, refuses a submission; the message is in its own words."""


class NoticeFailed(ServiceError):  # noqa: N818
    """An attempt to deliver a notice failed; another attempt may succeed."""


class NoticeRefused(NoticeFailed):
    """The notice must not go to this address, or its recipient wants none: no further attempt is made."""


class RequestError(ServiceError):
    """A request cannot be carried out; `status` is the HTTP status of the answer."""

    status: ClassVar[HTTPStatus] = HTTPStatus.BAD_REQUEST


class NotFound(RequestError):  # noqa: N818
    """The requested thing does not exist."""

    status = HTTPStatus.NOT_FOUND


class Conflict(RequestError):  # noqa: N818
    """The state of the requested thing does not allow the change."""

    status = HTTPStatus.CONFLICT


class PreconditionFailed(RequestError):  # noqa: N818
    """What is to be changed is no longer what the caller has seen."""

    status = HTTPStatus.PRECONDITION_FAILED


class NoLongerWanted(RequestError):  # noqa: N818
    """The caller is no longer wanted, such as the agent of a fragment that has ended."""

    status = HTTPStatus.GONE


class Forbidden(RequestError):  # noqa: N818
    """The token's role does not allow it."""

    status = HTTPStatus.FORBIDDEN


class Unauthorized(RequestError):  # noqa: N818
    """The request carries no token, an unknown one, or one of another fragment."""

    status = HTTPStatus.UNAUTHORIZED


class AccountUnavailable(RequestError):  # noqa: N818
    """What is asked for needs a user's Unix account, which cannot be entered now."""

    status = HTTPStatus.SERVICE_UNAVAILABLE


class Busy(RequestError):  # noqa: N818
    """As many such requests as the service allows at once are being handled already."""

    status = HTTPStatus.TOO_MANY_REQUESTS


class TooManyRequests(RequestError):  # noqa: N818
    """The caller's token sends too many requests; `retry_after_s` is the number of seconds to wait."""

    status = HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
