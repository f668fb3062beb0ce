"""A trainer of certain numbers of nodes only, when the nodes change: the real control loop in virtual time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from oakum_service.db.engine import Sessions
from oakum_service.db.models.trainers import Trainer
from virtual_site import VirtualSite, _Job

SIZES = (1, 2, 4, 8)


def test_when_a_node_is_taken_the_trainer_goes_to_the_next_smaller_size_at_once_and_others_get_the_rest(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = VirtualSite(sessions, tmp_path, num_nodes=8, busy=0, start_up_s=2.0)
    monkeypatch.setattr(time, "time", site.time)
    site.begin()
    curve = [[1, 1000], [8, 8000]]
    site.submit("sized", sizes=list(SIZES), curve=curve)
    members: list[int] = []

    def look() -> None:
        with sessions.begin() as session:
            members.append(len(session.query(Trainer).filter_by(name="sized").one().members))

    site.run(8, look)
    assert members[-1] == 8
    site.submit("filler", curve=curve, weight=0.01)
    site._jobs["foreground"] = _Job(site.now + 20.0, (3,))
    site.run(1, look)
    assert members[-1] == 4
    with sessions.begin() as session:
        assert session.query(Trainer).filter_by(name="sized").one().nodes_lost == 1
    site.run(8, look)
    assert members[-1] == 4
    assert site.sizes() == {"sized": 4, "filler": 3}
    site.run(30, look)
    assert members[-1] == 8
    assert {*members} <= {0, *SIZES}
