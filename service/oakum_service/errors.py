"""The service's exceptions.

ServiceError
├── ConfigurationError   a setting, or the place the service was started in, does not allow it to run
├── LeaseLost            another controller writes now; nothing may be written any more
├── SchedulerError       the scheduler refused or did not answer
│   ├── CommandFailed        a command of the scheduler's ended with an error, or was too slow
│   └── PayloadError         its answer cannot be read
└── RequestError         a request that cannot be carried out; `status` is its HTTP status
    ├── NotFound             404
    ├── Conflict             409
    ├── Gone                 410
    ├── Forbidden            403
    └── Unauthorized         401
"""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar


class ServiceError(Exception):
    """The service cannot do what it was asked."""


class ConfigurationError(ServiceError):
    """The service cannot run as configured."""


class LeaseLost(ServiceError):  # noqa: N818
    """Another controller holds the lease."""


class SchedulerError(ServiceError):
    """The scheduler refused or did not answer."""


class CommandFailed(SchedulerError):  # noqa: N818
    """A command of the scheduler's ended with an error; `last_line` is the last of what it wrote to stderr."""

    def __init__(self, message: str, *, last_line: str = "") -> None:
        super().__init__(message)
        self.last_line = last_line


class PayloadError(SchedulerError):
    """The scheduler's answer cannot be read: it says which call, which node or job, which field and value."""


class RequestError(ServiceError):
    """A request that cannot be carried out."""

    status: ClassVar[HTTPStatus] = HTTPStatus.BAD_REQUEST


class NotFound(RequestError):  # noqa: N818
    """There is no such thing."""

    status = HTTPStatus.NOT_FOUND


class Conflict(RequestError):  # noqa: N818
    """The state of the thing does not allow it."""

    status = HTTPStatus.CONFLICT


class Gone(RequestError):  # noqa: N818
    """The thing is no longer wanted."""

    status = HTTPStatus.GONE


class Forbidden(RequestError):  # noqa: N818
    """The token's role does not allow it."""

    status = HTTPStatus.FORBIDDEN


class Unauthorized(RequestError):  # noqa: N818
    """No token, or one that is not known."""

    status = HTTPStatus.UNAUTHORIZED
