"""The client's errors."""

from __future__ import annotations

from oakum_service.api.schemas.problems import ProblemDetails


class ClientError(Exception):
    """A call to the service did not succeed; base of the client's errors."""


class NotConfigured(ClientError):  # noqa: N818 (reads as the state it describes)
    """No usable address of the service was given or found."""


class ServiceUnreachable(ClientError):  # noqa: N818
    """Nothing answers at the service's address."""


class UnexpectedAnswer(ClientError):  # noqa: N818
    """What answers at the address is not an Oakum service of this version."""


class ApiError(ClientError):
    """The service refused the call; `problem` is its problem document."""

    def __init__(self, problem: ProblemDetails, advice: str = "") -> None:
        self.problem = problem
        detail = problem.detail or problem.title
        lines = [detail, *(f"  {line}" for line in problem.errors if line not in detail)]
        super().__init__("\n".join([*lines, advice] if advice else lines))

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status
