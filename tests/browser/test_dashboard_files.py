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


def test_what_the_page_names_is_kept_for_ever_by_its_hash_and_another_hash_is_not() -> None:
    """Under an address of another version a page that was opened before an update finds the present file."""
    page = get("/")
    assert page.headers["Cache-Control"] == "no-cache"
    named = re.findall(r'"(static/v-[0-9a-f]{16}/[^"]+)"', page.text)
    assert {path.rpartition(".")[2] for path in named} == {"css", "js"}
    kept = {get(f"/{path}").headers["Cache-Control"] for path in named}
    assert kept == {"public, max-age=31536000, immutable"}
    own = named[0].split("/")[1]
    plotly = get(f"/static/{own}/plotly.min.js")
    assert "plotly.js" in plotly.text[:200]
    assert "immutable" in plotly.headers["Cache-Control"]
    for other in ("", f"v-{'0' * 16}/"):
        assert get(f"/static/{other}js/main.js").headers["Cache-Control"] == "no-cache"


def test_the_page_asks_for_all_its_scripts_at_once() -> None:
    ahead = re.findall(r'rel="modulepreload" href="static/v-[0-9a-f]{16}/([^"]+)"', get("/").text)
    assert set(ahead) == {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.js")}


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
