"""A pytest plugin: a worker that replaces one which has crashed gets as many tests as it needs to begin.

A worker of pytest-xdist runs a test once it knows of the next one, or that there is none. Its replacement is
handed one test, and is thought of again only when that one is done: among the last tests both wait for ever.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling, Scheduling
from xdist.workermanage import WorkerController


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """The scheduler of `--dist loadgroup`; None for other ways to hand out tests."""
    return _Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


class _Scheduling(LoadGroupScheduling):  # type: ignore[misc]
    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)  # a further test, or that there is none
