"""Where a session runs: alone in a plain Python process, or as a rank of a trainer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn, Protocol

from oakum_worker.errors import SessionError, TrainingWarning
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.turns import Turns, turns_alone

_NOT_EXACT = (
    "the script says exact=False: its results may depend on the number of nodes. Write `exact: false` into the "
    "spec, too, so that the trainer is marked as such"
)


@dataclass(frozen=True)
class Asked:
    """What a script's call of `session` gives; None where it leaves this to the trainer's spec."""

    batch_size: int | None
    epochs: int | None
    seed: int | None
    workers: int | None = None
    exact: bool | None = None


class Host(Protocol):
    """The process in which a session runs."""

    is_alone: ClassVar[bool] = False
    """Whether no other rank can join."""

    def spec(self, asked: Asked) -> TrainerSpec:
        """The spec to train by. Raises `SessionError` where it contradicts what the script asks for."""

    def turns(self, loop: TrainingLoop) -> Turns:
        """A generator of the steps that the session has to take with this loop. It is sent each step's result, and
        returns whether training is finished."""

    def leave(self) -> NoReturn:
        """End this process: the others train on without it."""

    def finish_later(self, finish: Callable[[], None]) -> None:
        """Call `finish` when the script has come to its end without an error, where others wait for this."""
        return


class Alone(Host):
    """A plain Python process, which trains from the first step to the last."""

    is_alone = True

    def spec(self, asked: Asked) -> TrainerSpec:
        """The spec of a trainer with the script's batch, epochs (1), seed (0) and workers (0). Raises
        `SessionError` without a batch."""
        if asked.batch_size is None:
            raise SessionError(
                "session() has no batch_size: give the samples of one step, over all nodes together"
            )
        fields = {
            "global_batch": asked.batch_size,
            "epochs": asked.epochs or 1,
            "seed": asked.seed or 0,
            "workers": asked.workers or 0,
            "exact": asked.exact is not False,
        }
        try:
            return TrainerSpec.model_validate({"name": "alone", "script": "alone.py", **fields})
        except ValueError as error:
            raise SessionError(f"session() cannot train with {fields}: {error}") from error

    def turns(self, loop: TrainingLoop) -> Turns:
        """Every step up to the last epoch's end."""
        return turns_alone(loop)

    def leave(self) -> NoReturn:
        """A process alone never leaves."""
        raise AssertionError("a session alone was told to leave")


@dataclass
class RankHost(Host):
    """A rank of a trainer, whose spec names the script."""

    trainer_spec: TrainerSpec
    begin: Callable[[TrainingLoop], Turns]
    """Makes the rank of the loop, and returns its steps."""
    end_process: Callable[[], object]
    """Ends the process at once."""
    has_begun: bool = False
    finishing: list[Callable[[], None]] = field(default_factory=list)
    """What to call when the script has come to its end."""

    def spec(self, asked: Asked) -> TrainerSpec:
        """The trainer's own. Raises `SessionError` where the script says something else, or has a second
        session."""
        if self.has_begun:
            raise SessionError("the script begins a second session: a trainer trains one, so leave one of them")
        spec = self.trainer_spec
        pairs = {
            "batch_size": (asked.batch_size, "global_batch", spec.global_batch),
            "epochs": (asked.epochs, "epochs", spec.epochs),
            "seed": (asked.seed, "seed", spec.seed),
            "workers": (asked.workers, "workers", spec.workers or 0),
        }
        for name, (here, its_name, there) in pairs.items():
            if here not in (None, there):
                raise SessionError(
                    f"session() has {name}={here}, and the trainer's spec has {its_name}: {there}: make them "
                    f"equal, or leave {name} out of the script"
                )
        self.has_begun = True
        if asked.exact is False and spec.exact:
            warnings.warn(_NOT_EXACT, TrainingWarning, stacklevel=2)
            return spec.model_copy(update={"exact": False})
        return spec

    def turns(self, loop: TrainingLoop) -> Turns:
        """The steps of the rank, through one generation after another."""
        return self.begin(loop)

    def finish_later(self, finish: Callable[[], None]) -> None:
        """Remember what to call at the script's end."""
        self.finishing.append(finish)

    def leave(self) -> NoReturn:
        """End the process at once: no `finally` of the script runs."""
        self.end_process()
        raise AssertionError("the process should have ended")


HOST: ContextVar[Host] = ContextVar("HOST", default=Alone())  # noqa: B039  it has no state
"""Where sessions of this thread run."""
