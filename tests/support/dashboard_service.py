"""A real service with one trainer, and its dashboard in a browser, signed in by role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from selenium.webdriver.remote.webdriver import WebDriver

from oakum_client.rest.client import OakumClient
from running_service import RunningService, small_spec, wait_for_size
from service_page import Address, ServicePage
from waiting import DEADLINE_S


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    running = RunningService(tmp_path_factory.mktemp("service"), OAKUM_TRUST_USERS="1")
    client = running.start()
    client.submit(small_spec("long", epochs=100_000, max_nodes=2))
    wait_for_size(client, "long", 2)
    yield running
    running.end()


@pytest.fixture(scope="module")
def client(service: RunningService) -> OakumClient:
    return service.client()


@pytest.fixture(scope="module")
def tokens(service: RunningService) -> dict[str, str]:
    """Tokens of an administrator, a user without trainers, and a viewer."""
    found = json.loads((service.data_dir / "client.json").read_text(encoding="utf-8"))
    made = {"admin": str(found["token"])}
    for name, role in (("ulla", "user"), ("vera", "viewer")):
        answer = httpx.post(
            f"{found['url']}/v1/tokens",
            json={"name": name, "role": role},
            headers={"Authorization": f"Bearer {found['token']}"},
            timeout=DEADLINE_S,
        )
        made[role] = str(answer.raise_for_status().json()["token"])
    return made


def page_of(driver: WebDriver, client: OakumClient) -> ServicePage:
    """The service's page, which is not opened yet."""
    return ServicePage(driver, Address(client.address.url))  # type: ignore[arg-type]


def afresh(tab: str) -> Any:
    """A fixture: the page of the fixture `tab`, which is signed in once, in the state in which a test begins."""

    @pytest.fixture
    def page(self: object, request: pytest.FixtureRequest) -> ServicePage:
        opened: ServicePage = request.getfixturevalue(tab)
        opened.afresh()
        return opened

    return page
