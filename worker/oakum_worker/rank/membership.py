"""A rank's view of its trainer's membership: the service's newest directive, and what it asks of the rank."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oakum_worker.channel import Command
from oakum_worker.protocol import Directive, Generation


class Mailbox:
    """Holds the newest orders for a rank. The thread that listens to the agent puts them in; the training thread
    reads them and waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._directive = Directive(revision=-1)
        self._leave = False
        self._close = False
        self._save = False

    def put(self, command: Command) -> Directive:
        """Take in a command. Its directive replaces the present one unless it is older; leave, close and save stay
        set once they were. Returns the newest directive."""
        with self._changed:
            if command.directive is not None and command.directive.revision > self._directive.revision:
                self._directive = command.directive
            self._leave = self._leave or command.leave
            self._close = self._close or command.close
            self._save = self._save or command.save
            self._changed.notify_all()
            return self._directive

    @property
    def leaving(self) -> bool:
        """Whether the rank has to end once a generation has formed without it."""
        return self._leave or self._directive.leave

    @property
    def closing(self) -> bool:
        """Whether the agent has told the rank to leave without waiting for another generation."""
        return self._close

    @property
    def saving(self) -> bool:
        """Whether the rank has to write a durable checkpoint when it closes."""
        return self._save

    def pending(self, current: int) -> int:
        """The number of the newest generation in the directive if it is above `current`, else 0. Cheap enough to
        call in every step."""
        generation = self._directive.generation
        return generation.number if generation is not None and generation.number > current else 0

    def wait_for(self, ready: Callable[[Directive], bool]) -> Directive | None:
        """Wait until `ready(directive)` is true, and return the directive; None when the rank has to close
        first."""
        with self._changed:
            self._changed.wait_for(lambda: self._close or ready(self._directive))
            return None if self._close and not ready(self._directive) else self._directive


def next_generation(
    mailbox: Mailbox, fragment: str, after: int, *, at_least: int = 0, member: bool
) -> Generation | None:
    """Wait for the newest usable generation above `after` and return it; None when the rank has to leave.

    `at_least` is the generation that the ranks agreed to switch to: an older one is not waited for.
    """
    newest = max(after, at_least - 1)
    directive = mailbox.wait_for(lambda directive: calls_for_an_answer(directive, fragment, newest, member=member))
    return None if directive is None or is_sent_away(directive, fragment, member=member) else directive.generation


def calls_for_an_answer(directive: Directive, fragment: str, newest: int, *, member: bool) -> bool:
    """Whether a rank that waits for a generation above `newest` has to act on the directive.

    A fragment that is no member ignores generations that do not list it, because it is still to be taken in. A
    member that finds a generation without itself has to leave, or to wait for another generation.
    """
    if is_sent_away(directive, fragment, member=member):
        return True
    generation = directive.generation
    if generation is None or generation.number <= max(newest, directive.ended_through):
        return False
    return member or generation.first_rank(fragment) is not None


def is_sent_away(directive: Directive, fragment: str, *, member: bool) -> bool:
    """Whether a fragment that is no member is told to leave, and the newest generation does not name it.

    A generation may name a fragment that has to leave, because the others need the state in its memory.
    """
    named = directive.generation is not None and directive.generation.first_rank(fragment) is not None
    return directive.leave and not member and not named
