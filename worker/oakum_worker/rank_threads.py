"""What a rank does beside training: obey its agent at once, give signs of life, hand warnings on."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from typing import Any

from oakum_worker.channel import Command, NewsWriter
from oakum_worker.errors import TrainingWarning
from oakum_worker.group import GenerationGroup
from oakum_worker.keeper import Keeper
from oakum_worker.membership import Mailbox
from oakum_worker.protocol import Phase
from oakum_worker.reporter import ProgressReporter
from oakum_worker.step_clock import StepClock, waits_for_others
from oakum_worker.trainer import TrainingLoop

_PULSE_S = 0.5


class Commands:
    """The thread that obeys the agent."""

    def __init__(self, news: NewsWriter, mailbox: Mailbox, group: GenerationGroup) -> None:
        self._news = news
        self._mailbox = mailbox
        self._group = group
        self._keeper: Keeper | None = None
        self._reporter: ProgressReporter | None = None

    def serve(self, keeper: Keeper, reporter: ProgressReporter) -> None:
        """From now on there is a state to leave behind."""
        self._keeper, self._reporter = keeper, reporter

    def run(self) -> None:
        """Read the agent's commands until it is gone, then end the process at once."""
        for line in sys.stdin:
            self._obey(Command.model_validate_json(line))
        # The rank leads a process group of its own: what the user's code has started goes with it.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def _obey(self, command: Command) -> None:
        directive = self._mailbox.put(command)
        if (broken := self._group.cut(directive.over)) is not None:
            # Said here and not by the training thread, which may be in the middle of a long step.
            self._news.send(broken=broken)
        if directive.generation is not None:
            self._group.cut_forming(below=directive.generation.number)
        if command.close and self._closes_at_once(save=command.save):
            if command.save and self._reporter is not None:
                self._reporter.flush()
            self._news.send(phase=Phase.LEFT)
            end_process()

    def _closes_at_once(self, *, save: bool) -> bool:
        """Whether the state is safe now; else the training thread sees to it at the step boundary."""
        try:
            return self._keeper is not None and self._keeper.close_at_once(save=save)
        except Exception as error:  # from the task's own state, which may change while it is looked at
            print(f"the state cannot be taken in the middle of a step: {error!r}", flush=True)
            return False


def give_signs_of_life(news: NewsWriter, loop: TrainingLoop, step_timeout_s: float) -> None:
    """Until the task's code takes longer for one step than any step may."""
    clock = StepClock(lambda: loop.computing_since_s, waits_for_others)
    while not clock.exceeds(step_timeout_s):
        news.send()
        time.sleep(_PULSE_S)
    news.send(hangs=True, warning=f"a step had not ended after {step_timeout_s:g} s (step_timeout_s)")


def hand_on_warnings(news: NewsWriter) -> None:
    """What the user should know goes to the service, and not into a log alone."""
    show = warnings.showwarning

    def hand_on(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, TrainingWarning):
            news.send(warning=str(message))
        else:
            show(message, category, *where, **more)

    warnings.showwarning = hand_on


def end_process() -> None:
    """Interpreter and torch teardown take long and can hang on a broken group; nothing is left to tear down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
