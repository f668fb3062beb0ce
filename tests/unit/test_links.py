"""Links between the pages of the project lead somewhere: to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from documentation import PAGES, ROOT, name_of

_FENCE = re.compile(r"^( *)```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FOLDERS = "bench|client|deploy|docs|examples|migrations|service|solver|tests|tools|worker"
_PATH = re.compile(rf"`((?:{_FOLDERS})/[\w./-]+)(?:::\w+)*`")
_MADE_UP = re.compile(r"N[A-Z]{3}")
_PAGE_IN_CODE = re.compile(r"\b(?:docs|bench)/[\w/-]+\.md\b")


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    pages = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "tests" / "README.md"]
    assert sum(1 for page in pages for _ in _links(page)) > 100
    assert [f"{name_of(page)}: {link}" for page in pages for link in _links(page) if not _leads(page, link)] == []


def test_every_file_that_a_page_names_is_there() -> None:
    """A path in which a reader puts a name, such as `cli/NAME.py`, is none."""
    named = {(name_of(page), path) for page in PAGES for path in _PATH.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 100
    assert {
        (page, path) for page, path in named if not _MADE_UP.search(path) and not (ROOT / path).exists()
    } == set()


def test_every_page_that_code_names_is_there() -> None:
    """Error messages and comments send readers to pages by name."""
    folders = [folder for folder in _FOLDERS.split("|") if folder != "docs"]
    kinds = ("*.py", "*.js", "*.html", "*.sh", "*.toml", "*.yaml")
    files = [path for folder in folders for kind in kinds for path in (ROOT / folder).rglob(kind)]
    named = {
        (name_of(path), page)
        for path in files
        for page in _PAGE_IN_CODE.findall(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert len(named) > 5
    assert {(path, page) for path, page in named if not (ROOT / page).exists()} == set()


def _links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(_CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))):
        if not link.startswith(("http:", "https:", "mailto:")):
            yield link


def _leads(page: Path, link: str) -> bool:
    name, _, heading = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return target.exists() and (not heading or heading in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be linked, as GitHub makes them."""
    found: set[str] = set()
    for line in _FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("#"):
            base = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
            number = sum(1 for one in found if re.fullmatch(re.escape(base) + r"(-\d+)?", one))
            found.add(f"{base}-{number}" if number else base)
    return found
