"""On which nodes fragments are launched, and what becomes of them, under the real control loop in virtual time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from oakum_service.db.engine import Sessions
from virtual_site import Fill, VirtualSite

FILLS: dict[str, Fill] = {
    "from the first node on": sorted,
    "from the last node on": lambda idle: sorted(idle, reverse=True),
    "every third node first": lambda idle: sorted(idle, key=lambda node: (node % 3, node)),
}


@pytest.mark.parametrize(
    "fill",
    [
        pytest.param(fill, id=name, marks=() if name == "every third node first" else pytest.mark.soak)
        for name, fill in FILLS.items()
    ],
)
def test_a_small_trainer_on_a_large_cluster_trains_nearly_all_the_time(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fill: Fill
) -> None:
    """200 nodes of which 142 are idle, and a trainer of at most two."""
    site = VirtualSite(sessions, tmp_path, num_nodes=200, busy=58, fill=fill)
    monkeypatch.setattr(time, "time", site.time)
    site.begin()
    site.submit("small", max_nodes=2, curve=[[1, 500], [2, 1000]])
    site.run(150)
    used = site.training_node_s.get("small", 0.0) / (2 * 150)
    assert used >= 0.9, f"{used:.0%} used, {site.launches} launches"
    assert site.launches["small"] <= 5
