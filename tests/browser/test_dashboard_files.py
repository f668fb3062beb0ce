"""The page's files as they are served; no browser needed."""

from __future__ import annotations

import asyncio
import re

import httpx
from fastapi import FastAPI

from oakum_service.dashboard import FOLDER
from oakum_service.dashboard.routes import router


def get(path: str, **headers: str) -> httpx.Response:
    app = FastAPI()
    app.include_router(router)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://oakum.test") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


def test_plotly_is_served_from_the_package_and_kept_for_long() -> None:
    answer = get("/static/plotly.min.js")
    assert "plotly.js" in answer.text[:200]
    assert answer.headers["Cache-Control"] == "public, max-age=2592000"


def test_an_unchanged_file_is_not_sent_again() -> None:
    first = get("/static/js/main.js")
    again = get("/static/js/main.js", **{"If-None-Match": first.headers["ETag"]})
    assert first.headers["Content-Type"].startswith("text/javascript")
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_and_its_files_name_no_other_host() -> None:
    own = [path for path in FOLDER.rglob("*") if path.suffix in {".html", ".css", ".js"}]
    named = {url for path in own for url in re.findall(r"https?://[\w./-]+", path.read_text())}
    assert named == {"http://www.w3.org/2000/svg"}


def test_no_file_turns_data_into_markup() -> None:
    pattern = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\son\w+=\"|\sstyle=\"")
    for path in FOLDER.rglob("*"):
        if path.suffix in {".html", ".js"}:
            assert not pattern.search(path.read_text()), path.name
