"""Answers the service's questions about checkpoints, in the account that they belong to.

`python -m oakum_worker.checkpoint.in_account` reads a `CheckpointRequest` from stdin and writes a
`CheckpointAnswer` to stdout. The service cannot enter the folders of users' accounts, and would be led astray by
links in them if it could. Imports no torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from oakum_worker.checkpoint.folders import CheckpointFolders
from oakum_worker.errors import CheckpointError

ACCOUNT_FOLDER = "OAKUM_ACCOUNT_FOLDER"
"""Environment variable with the account's folder, set by the launcher."""
_TrainerId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class CheckpointRequest(BaseModel):
    """A question about the checkpoints of one account's trainers: the name and the arguments of a method of
    `CheckpointFolders`."""

    model_config = ConfigDict(extra="forbid")

    do: Literal["exist", "best_step", "adopt", "size_bytes"]
    trainers: tuple[_TrainerId, ...]
    """The trainer, or for `adopt` source and target, or for `size_bytes` any number."""
    step: int | None = None


class CheckpointAnswer(BaseModel):
    """The method's result, or its error's message."""

    result: Annotated[int, Field(ge=0, lt=2**63)] | bool | None = None
    error: str | None = None


def checkpoints_in(folder: Path) -> Path:
    """Where an account's folder has the checkpoints of the account's trainers."""
    return folder / "checkpoints"


def answer(folders: CheckpointFolders, request: CheckpointRequest) -> CheckpointAnswer:
    """Carry out the request on the folders."""
    try:
        match request.do:
            case "exist":
                return CheckpointAnswer(result=folders.exist(*request.trainers))
            case "best_step":
                return CheckpointAnswer(result=folders.best_step(*request.trainers))
            case "adopt":
                source, target = request.trainers
                return CheckpointAnswer(result=folders.adopt(source, target, request.step))
            case "size_bytes":
                return CheckpointAnswer(result=folders.size_bytes(request.trainers))
    except (CheckpointError, OSError) as error:
        return CheckpointAnswer(error=str(error))


def main() -> None:
    """Answer the request on stdin."""
    request = CheckpointRequest.model_validate_json(sys.stdin.buffer.read())
    folders = CheckpointFolders(checkpoints_in(Path(os.environ[ACCOUNT_FOLDER])))
    print(answer(folders, request).model_dump_json())


if __name__ == "__main__":
    main()
