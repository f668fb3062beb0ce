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
from oakum_worker.keeping.keeper import Keeper
from oakum_worker.parallel.group import GenerationGroup
from oakum_worker.protocol import Phase
from oakum_worker.rank.membership import Mailbox
from oakum_worker.rank.reporter import ProgressReporter
from oakum_worker.rank.step_clock import StepClock, Vigil, waits_for_others
from oakum_worker.step.task_clock import TaskClock

_PULSE_S = 0.5
_LEAVE_S = 10.0
"""Time for the training thread to notice that the ranks it waits for are gone."""


class Commands:
    """Reads the agent's commands, in a thread of its own, and obeys them: cuts broken generations, and leaves when
    told to."""

    def __init__(self, news: NewsWriter, mailbox: Mailbox, group: GenerationGroup) -> None:
        self._news = news
        self._mailbox = mailbox
        self._group = group
        self._keeper: Keeper | None = None
        self._reporter: ProgressReporter | None = None

    def serve(self, keeper: Keeper, reporter: ProgressReporter) -> None:
        """Give the thread the keeper, through which it can save the state when told to close, and the reporter."""
        self._keeper, self._reporter = keeper, reporter

    def run(self) -> None:
        """Read and obey the agent's commands until the agent has ended; then kill this process and all that it has
        started."""
        for line in sys.stdin:
            self._obey(Command.model_validate_json(line))
        # The rank leads a process group of its own, so this also kills what the user's code has started.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def _obey(self, command: Command) -> None:
        directive = self._mailbox.put(command)
        if (broken := self._group.cut(directive.ended_through)) is not None:
            # Reported from this thread, because the training thread may be in the middle of a long step.
            self._news.send(broken=broken)
        if directive.generation is not None:
            self._group.cut_forming(below=directive.generation.number)
            self._group.expect(directive.generation)
        if command.close and self._closes_at_once(save=command.save):
            if command.save and self._reporter is not None:
                self._reporter.flush()
            self._group.let_peers_connect()
            self._news.send(phase=Phase.LEFT)
            end_process()

    def _closes_at_once(self, *, save: bool) -> bool:
        """Whether the keeper could close in the middle of the step, with the state safe, so that the rank can
        leave now; otherwise the training thread closes at the step boundary."""
        try:
            return self._keeper is not None and self._keeper.close_at_once(save=save)
        except Exception as error:  # from the task's own state, which may change while it is copied
            print(f"the state cannot be taken in the middle of a step: {error!r}", flush=True)
            return False


def give_signs_of_life(
    news: NewsWriter,
    task_clock: TaskClock,
    group: GenerationGroup,
    reporter: ProgressReporter,
    step_timeout_s: float,
) -> None:
    """Tell the agent again and again that this rank is alive. Ends when the task's code exceeds `step_timeout_s`
    in one step, or when the training thread does not stop to wait for ranks of a generation that is over; the hang
    is then reported, and the agent kills the rank."""
    clock = StepClock(lambda: task_clock.computing_since_s, waits_for_others)
    vigil = Vigil(lambda: group.is_to_be_left and (group.is_aborting or waits_for_others()))
    while not clock.exceeds(step_timeout_s):
        if vigil.lasts(_LEAVE_S):
            news.send(hangs=True, warning=f"it still waited for lost ranks after {_LEAVE_S:g} s")
            return
        news.send(pace=reporter.new_pace())
        time.sleep(_PULSE_S)
    news.send(hangs=True, warning=f"a step had not ended after {step_timeout_s:g} s (step_timeout_s)")


def hand_on_warnings(news: NewsWriter) -> None:
    """From now on send each `TrainingWarning` to the agent instead of printing it."""
    show = warnings.showwarning

    def hand_on(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, TrainingWarning):
            news.send(warning=str(message))
        else:
            show(message, category, *where, **more)

    warnings.showwarning = hand_on


def end_process() -> None:
    """End the process at once, without the teardown of Python and torch, which can hang on a broken group."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
