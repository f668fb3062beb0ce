"""Where trainers' checkpoints are and in whose account their code runs: the service's, or each user's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from oakum_service.config import Settings
from oakum_service.run_as.accounts import UserAccounts
from oakum_worker.checkpoint.folders import CheckpointFolders
from oakum_worker.checkpoint.in_account import CheckpointAnswer, CheckpointRequest, checkpoints_in
from oakum_worker.errors import CheckpointError
from oakum_worker.fragment_config import RunAs

_MOST_STEPS = 2**31 - 1


class Checkpoints(Protocol):
    """The durable checkpoints of one account's trainers, by the trainers' ids; see `CheckpointFolders`.

    Answers may take minutes, as long as a user likes where they come from the user's account: never ask within a
    transaction, for which others wait.
    """

    def of(self, trainer_id: str) -> Path: ...
    def exist(self, trainer_id: str) -> bool: ...
    def best_step(self, trainer_id: str) -> int | None: ...
    def adopt(self, source: str, target: str, step: int | None = None) -> int: ...
    def size_bytes(self, trainers: Iterable[str]) -> int: ...


class TrainerFiles(Protocol):
    """Answers whose account a trainer's code and files belong to."""

    def check(self, user: str | None) -> None:
        """Raise `Forbidden` where the user has no account in which code runs here, and `AccountUnavailable` where
        that cannot be found out now."""

    def run_as(self, user: str | None) -> RunAs | None:
        """How a fragment gets into the user's account; None where it stays in the service's."""

    def checkpoints(self, user: str | None) -> Checkpoints:
        """The checkpoints of the user's trainers."""


def open_files(settings: Settings) -> TrainerFiles:
    """The trainers' files as the settings say."""
    if settings.runs_as_submitters:
        assert settings.slurm.spool_dir is not None  # checked with the settings
        return SubmittersFiles(UserAccounts(settings.slurm.launcher), settings.slurm.spool_dir)
    return ServicesFiles(settings.checkpoints_dir)


@dataclass(frozen=True)
class ServicesFiles:
    """All code runs in the service's account, which owns all checkpoints."""

    checkpoints_dir: Path

    def check(self, user: str | None) -> None:
        """Every user's code runs there."""

    def run_as(self, user: str | None) -> RunAs | None:
        """None: fragments stay in the account that they are started in."""
        return None

    def checkpoints(self, user: str | None) -> CheckpointFolders:
        """The one folder with all trainers' checkpoints."""
        return CheckpointFolders(self.checkpoints_dir)


@dataclass(frozen=True)
class SubmittersFiles:
    """Each trainer's code runs in its user's account, which owns its checkpoints; the service cannot enter
    them."""

    accounts: UserAccounts
    spool: Path
    """Folder with one folder for each account, closed to all others."""

    def check(self, user: str | None) -> None:
        """Raise `Forbidden` where the launcher refuses the user's account, and `AccountUnavailable` where it
        cannot be asked."""
        self.accounts.check(user or "")

    def run_as(self, user: str | None) -> RunAs:
        """The user's account, and the launcher that enters it."""
        return RunAs(account=user or "", launcher=str(self.accounts.launcher))

    def checkpoints(self, user: str | None) -> Checkpoints:
        """The checkpoints in the user's folder of the spool, looked at in the user's account."""
        return _CheckpointsOfAccount(self.accounts, user or "", checkpoints_in(self.spool / (user or "")))


@dataclass(frozen=True)
class _CheckpointsOfAccount:
    accounts: UserAccounts
    user: str
    root: Path

    def of(self, trainer_id: str) -> Path:
        return self.root / trainer_id

    def exist(self, trainer_id: str) -> bool:
        return bool(self._ask(CheckpointRequest(do="exist", trainers=(trainer_id,))))

    def best_step(self, trainer_id: str) -> int | None:
        return self._step(CheckpointRequest(do="best_step", trainers=(trainer_id,)))

    def adopt(self, source: str, target: str, step: int | None = None) -> int:
        return self._step(CheckpointRequest(do="adopt", trainers=(source, target), step=step)) or 0

    def size_bytes(self, trainers: Iterable[str]) -> int:
        return int(self._ask(CheckpointRequest(do="size_bytes", trainers=tuple(trainers))) or 0)

    def _step(self, request: CheckpointRequest) -> int | None:
        step = self._ask(request)
        if step is not None and step > _MOST_STEPS:
            raise CheckpointError(f"there is no step {step}")
        return step

    def _ask(self, request: CheckpointRequest) -> int | None:
        """The result of the request. Raises `CheckpointError` with what is wrong with the checkpoints."""
        reply = self.accounts.run("checkpoints", self.user, request.model_dump_json().encode())
        try:
            answer = CheckpointAnswer.model_validate_json(reply)
        except ValidationError as error:  # the user may have written it
            raise CheckpointError(f"what was answered in {self.user}'s account is no answer") from error
        if answer.error is not None:
            raise CheckpointError(answer.error)
        return answer.result
