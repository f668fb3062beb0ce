"""A cap and an administrator's own objective, set while a service runs.

Who gets nodes before whom is shown by `tests/unit/solver/test_priorities_caps_guarantees.py`, and what is said of
it by `tests/unit/service/test_posed_problem.py`.
"""

from __future__ import annotations

from running_service import RunningService, small_spec, wait_for_size


def test_a_user_gets_no_more_than_the_cap_and_is_told_so(shared_service: RunningService) -> None:
    client = shared_service.client()
    settings = {"user_cap": 2, "objective": "weight * samples / rate_one"}
    try:
        for name, value in settings.items():
            client.change_setting(name, value)
        client.submit(small_spec("capped", epochs=100_000))
        assert wait_for_size(client, "capped", 2).user == "local-admin"
        told, objective = client.explain("capped"), client.plan().objective
    finally:
        for name in settings:
            client.reset_setting(name)
    assert (told.granted, told.why) == (2, "user_cap")
    assert told.reason == "Trains on 2 nodes: local-admin's trainers together have 2 nodes and may have at most 2."
    assert objective == settings["objective"]
