"""A change signal that wakes those who wait in any process of the service."""

from __future__ import annotations

from oakum_service.change_signal import ChangeSignal
from oakum_service.peers.line import Line


class SharedSignal(ChangeSignal):
    """A counter of changes that also counts those of the other processes."""

    def __init__(self, line: Line, topic: str) -> None:
        """`topic` names the signal; its namesakes in the other processes are notified together with it."""
        super().__init__()
        self._line, self._topic = line, topic
        line.hear(topic, lambda _: self._notify_here())

    def notify(self) -> None:
        """Count one change here, and in the other processes soon; wake everyone who waits."""
        self._notify_here()
        if not self.closed:
            self._line.tell(self._topic)

    def _notify_here(self) -> None:
        super().notify()
