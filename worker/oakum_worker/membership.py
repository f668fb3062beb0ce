"""A rank's view of its trainer's membership: the newest word from the service, and who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oakum_worker.channel import Command
from oakum_worker.protocol import Directive, Generation


class Mailbox:
    """Holds the newest command for a rank. One thread puts, the training thread reads and waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._directive = Directive(revision=-1)
        self._close = False
        self._save = False

    def put(self, command: Command) -> Directive:
        """Take a command in; an older directive than the one held is dropped. Returns the one that holds."""
        with self._changed:
            if command.directive is not None and command.directive.revision > self._directive.revision:
                self._directive = command.directive
            self._close = self._close or command.close
            self._save = self._save or command.save
            self._changed.notify_all()
            return self._directive

    @property
    def closing(self) -> bool:
        """Whether the agent wants the rank to leave by itself."""
        return self._close

    @property
    def saving(self) -> bool:
        """Whether the rank has to write a durable checkpoint when it closes."""
        return self._save

    def pending(self, current: int) -> int:
        """Number of the newest generation above `current`, or 0. Cheap: called before every step."""
        generation = self._directive.generation
        return generation.number if generation is not None and generation.number > current else 0

    def wait_for(self, ready: Callable[[Directive], bool]) -> Directive | None:
        """Block until the directive satisfies `ready`, and return it; None when the rank has to close."""
        with self._changed:
            self._changed.wait_for(lambda: self._close or ready(self._directive))
            return None if self._close and not ready(self._directive) else self._directive


def next_generation(
    mailbox: Mailbox, fragment: str, after: int, *, at_least: int = 0, member: bool
) -> Generation | None:
    """The newest usable generation above `after`; blocks for it. None when there is nothing left to join.

    A fragment that was never a member ignores generations that do not list it: it is still on its way in. One
    that is a member takes the first that does not list it as the word to leave. `at_least` is the generation
    that the ranks agreed to switch to: an older one is not waited for.
    """

    def usable(directive: Directive) -> bool:
        generation = directive.generation
        if directive.leave and not member:
            return True
        if generation is None or generation.number <= max(after, directive.over, at_least - 1):
            return False
        return member or generation.first_rank(fragment) is not None

    directive = mailbox.wait_for(usable)
    if directive is None or (directive.leave and not member):
        return None
    return directive.generation
