"""After years of use no answer takes the service half a second of computing, however much is asked for, and
whatever it remembers of earlier answers."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from api_under_test import ApiUnderTest, FakeScheduler
from long_history import fill, paths
from trained_scene import train_on_two_nodes

_DAYS, _TRAINERS_A_DAY = 90, 1_112
"""100,000 trainers, in the time for which ended ones are kept, with seven fragments, three stretches of a node and
a foreground start for each."""
_MOST_S = 0.5
_SERVICES = 3
"""A busy machine makes some answers take more CPU time: the least counts, of services that have just begun."""


def test_no_route_takes_long_after_years_of_use(empty_database: Path, tmp_path: Path) -> None:
    shutil.copy(empty_database, tmp_path / "oakum.db")
    api = ApiUnderTest(tmp_path, FakeScheduler())
    now = train_on_two_nodes(api).now
    fill(api, now, _DAYS, _TRAINERS_A_DAY)
    month = f"from_at={now - 30 * 86400}&to_at={now}"
    asked = [
        *paths(api, now),
        f"/v1/timeline/rows?{month}&node=n1&node=n2&node=n3",
        f"/v1/timeline/occupancy?{month}&columns=2000&bands=500",
        f"/v1/timeline/nodes?{month}&find=ended",
        f"/v1/timeline/nodes?from_at={now - 60 * 86400}&to_at={now - 40 * 86400}&find=nothing",
        "/v1/timeline?since_s=604800&limit=200000",
    ]
    taken_s = dict.fromkeys(asked, 60.0)
    for _ in range(_SERVICES):
        api.close()
        api = ApiUnderTest(tmp_path, FakeScheduler())
        for path in asked:
            taken_s[path] = min(taken_s[path], _cpu_s(api, path))
    api.close()
    assert {path: seconds for path, seconds in taken_s.items() if seconds > _MOST_S} == {}


def _cpu_s(api: ApiUnderTest, path: str) -> float:
    began_s = time.process_time()
    response = api.admin.get(path)
    assert response.status_code in (200, 404, 503), (path, response.text)
    return time.process_time() - began_s
