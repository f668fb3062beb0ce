"""Lists that are read once for all who ask at the same time: each caller sees what is his, and his own changes."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import httpx

from api_under_test import SPEC, ApiUnderTest
from oakum_service.api.auth import Role

SECRET = "what only its user may see"
LISTS = ("/v1/trainers", "/v1/trainers?live=true", "/v1/trainers?user=ada", "/v1/trainers?limit=1")


def test_whoever_asks_beside_whom_sees_only_what_is_his(api: ApiUnderTest) -> None:
    users = {name: api.client(api.new_token(name, Role.USER)) for name in ("ada", "ben")}
    for name, client in users.items():
        for number in range(2):
            document = SPEC | {"name": f"{name}-{number}", "arguments": {"key": SECRET}}
            assert client.post("/v1/trainers", json=document).status_code == 201
    callers = {**users, "": api.viewer}

    def wrong(turn: int) -> list[tuple[str, str]]:
        name, client = list(callers.items())[turn % len(callers)]
        listed = client.get(LISTS[turn // len(callers) % len(LISTS)]).json()["trainers"]
        is_shown = [(each["name"], SECRET in json.dumps(each), name in ("", each["user"])) for each in listed]
        return [(name, trainer) for trainer, shown, may_see in is_shown if shown != may_see]

    with ThreadPoolExecutor(8) as threads:
        assert list(itertools.chain(*threads.map(wrong, range(96)))) == []


def test_a_list_knows_what_its_reader_has_changed_before(api: ApiUnderTest) -> None:
    clients = [api.client(api.new_token(f"user{number}", Role.USER)) for number in range(4)]
    for number, client in enumerate(clients):
        assert client.post("/v1/trainers", json=SPEC | {"name": f"t{number}"}).status_code == 201

    def read_own_changes(client: httpx.Client, number: int) -> None:
        for weight in (0.2, 0.4, 0.6, 0.8):
            assert client.patch(f"/v1/trainers/t{number}", json={"weight": weight}).status_code == 200
            listed = client.get("/v1/trainers").json()["trainers"]
            assert [each["spec"]["weight"] for each in listed if each["name"] == f"t{number}"] == [weight]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read_own_changes, clients, range(4)))
