"""The page's files as they are served; no browser needed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from oakum_service.dashboard import FOLDER
from oakum_service.dashboard.bundle import one_script
from oakum_service.dashboard.routes import router
from page_states import VIEWS


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


def test_the_page_asks_for_one_script_which_has_all_its_modules() -> None:
    [script] = re.findall(r'src="(static/[^"]+\.js)"', get("/").text)
    packed, plain = get(f"/{script}"), get(f"/{script}", **{"Accept-Encoding": "identity"})
    made = re.findall(r'^modules\["([^"]+)"\] = ', packed.text, re.M)
    assert sorted(made) == sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.js"))
    assert (packed.headers["Content-Encoding"], plain.text) == ("gzip", packed.text)


def test_the_page_asks_for_one_style_which_has_all_rules() -> None:
    [style] = re.findall(r'href="(static/[^"]+\.css)"', get("/").text)
    packed = get(f"/{style}")
    assert packed.headers["Content-Encoding"] == "gzip"
    rules = [path.read_text() for path in FOLDER.glob("*.css")]
    assert (len(packed.text), [text for text in rules if text not in packed.text]) == (sum(map(len, rules)), [])


@pytest.mark.parametrize(
    ("modules", "wrong"),
    [
        ({"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}, "imports itself"),
        ({"a.js": 'import * as b from "./b.js";\n', "b.js": ""}, "cannot be put into one script: import"),
        ({"a.js": "export default 1;\n"}, "cannot be put into one script: export"),
    ],
)
def test_a_module_of_another_form_is_refused(tmp_path: Path, modules: dict[str, str], wrong: str) -> None:
    for name, text in modules.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=wrong):
        one_script(tmp_path, "a.js")


def test_every_view_of_the_page_is_drawn_and_read_in_its_states() -> None:
    """By `make screenshots` and by axe."""
    paths = re.findall(r"\{ path: (?:\"(.*?)\"|/\^(.*?)\$/),", (FOLDER / "js/views.js").read_text())
    known = {
        plain or pattern.replace("\\/[^/]+", "/{trainer}").replace("\\/\\d+", "/{plan}")
        for plain, pattern in paths
    }
    assert {view.address.partition("?")[0] for view in VIEWS} == known | {""}


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
