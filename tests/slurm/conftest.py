"""Three real Slurm clusters, side by side, for the tests here; each test finds its cluster empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_service import SlurmService
from slurm_site import SlurmSite

_NODES = 8
_GRACE_S = 10
_KILL_WAIT_S = 60
"""With Slurm's MessageTimeout, for how long it preempts no more for a job, whatever else is slow."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Divide the tests into groups that take equally long; the worker that runs a group has one cluster for it.

    In one row they would take longer than all other tests together: they mostly wait. None may name a group of
    its own.
    """
    for item in items:
        if "tests/slurm/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group(_group_of(item)))
            item.add_marker(pytest.mark.needs("slurm"))


def _group_of(item: pytest.Item) -> str:
    groups = {"test_service": "slurm service"}
    groups |= dict.fromkeys(("test_accounts", "test_hooks", "test_two_services"), "slurm")
    return groups.get(item.path.stem, "slurm cluster")


@pytest.fixture(scope="session")
def _slurm_cluster() -> Iterator[SlurmSite]:
    site = SlurmSite.make(nodes=_NODES, grace_s=_GRACE_S, kill_wait_s=_KILL_WAIT_S)
    yield site
    site.down()


@pytest.fixture
def slurm(_slurm_cluster: SlurmSite) -> Iterator[SlurmSite]:
    """Eight idle nodes, no jobs; partitions `main` and `fill`, preemption by partition after 10 s of grace."""
    _slurm_cluster.clean()
    yield _slurm_cluster
    # A test may have ended slurmctld; the next one starts it.
    if _slurm_cluster.daemon_runs("slurmctld"):
        _slurm_cluster.cancel_all()


@pytest.fixture
def service(slurm: SlurmSite, tmp_path: Path) -> Iterator[SlurmService]:
    """A service that watches the cluster; nothing of it is left behind."""
    running = SlurmService(tmp_path, slurm, OAKUM_SLURM_POLL_FLOOR_S="1")
    yield running
    running.end()
