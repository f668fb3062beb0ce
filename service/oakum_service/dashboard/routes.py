"""Serves the dashboard's page and files.

The page holds a token, so its content security policy forbids everything that does not come from this server. The
addresses of its scripts and styles have a hash of all of them in them: browsers keep them until one changes.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles

from oakum_service.dashboard import FOLDER
from oakum_service.dashboard.bundle import one_script

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",  # a chart becomes a picture file through one that the page makes
        "connect-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
GUARDS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FOREVER = f"public, max-age={365 * 24 * 3600}, immutable"
_PACKED = {**GUARDS, "Cache-Control": _FOREVER, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
"""Headers of a file that is kept compressed: to do that anew takes as long as all else on the way to the first
numbers."""
REVALIDATE = "no-cache"
_STYLE = re.compile(r'<link rel="stylesheet" href="static/([^"]+)"')
_HASHED = re.compile(r"v-([0-9a-f]{16})/(.+)")
_PLOTLY = "plotly.min.js"
_FIRST = "js/main.js"
_ALL_STYLES = "all.css"
_ALL = "js/all.js"
"""The page's modules in one script. It stands beside them, since some look for files beside themselves."""

_PAGE = StaticFiles(directory=FOLDER)

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> Response:
    """Serve the dashboard's page."""
    return HTMLResponse(_page(), headers={**GUARDS, "Cache-Control": REVALIDATE})


@router.get("/static/{path:path}")
async def static(path: str, request: Request) -> Response:
    """Serve the page's style, scripts and icon, and Plotly's bundle from the installed package."""
    tag, path = found.groups() if (found := _HASHED.fullmatch(path)) else (None, path)
    if tag == files_tag() and path in _texts() and "gzip" in request.headers.get("Accept-Encoding", ""):
        return Response(_packed(path), headers={**_PACKED, "Content-Type": _texts()[path]})
    if path in (_ALL, _ALL_STYLES):
        plain = {**GUARDS, "Cache-Control": REVALIDATE, "Content-Type": _texts()[path]}
        return Response(_read(path), headers=plain)
    files = StaticFiles(directory=_plotly_folder()) if path == _PLOTLY else _PAGE
    # A page that was opened before an update may ask for a file that has changed since.
    return await send_file(files, path, request, _FOREVER if tag == files_tag() else REVALIDATE)


async def send_file(files: StaticFiles, path: str, request: Request, caching: str = REVALIDATE) -> Response:
    """One file of a page, with the headers that keep everything from elsewhere away."""
    answer = await files.get_response(path, request.scope)
    answer.headers.update({**GUARDS, "Cache-Control": caching})
    return answer


@functools.cache
def files_tag() -> str:
    """A hash over the page's files and Plotly's version, which changes when one of these does."""
    digest = hashlib.sha256(version("plotly").encode())
    for path in sorted(FOLDER.rglob("*.*")):
        digest.update(path.relative_to(FOLDER).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _texts() -> dict[str, str]:
    """The scripts and styles by their paths, with their types."""
    types = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
    files = (path for path in FOLDER.rglob("*.*") if path.suffix in types)
    types_by_path = dict.fromkeys((_PLOTLY, _ALL), types[".js"]) | {_ALL_STYLES: types[".css"]}
    return types_by_path | {path.relative_to(FOLDER).as_posix(): types[path.suffix] for path in files}


@functools.cache
def _packed(path: str) -> bytes:
    """One of `_texts`, compressed."""
    return gzip.compress(_read(path), mtime=0)


def _read(path: str) -> bytes:
    if path == _ALL:
        return one_script(FOLDER, _FIRST).encode()
    if path == _ALL_STYLES:
        return b"".join((FOLDER / name).read_bytes() for name in _STYLE.findall(_source()))
    return ((_plotly_folder() if path == _PLOTLY else FOLDER) / path).read_bytes()


@functools.cache
def _page() -> str:
    """The page, with its modules as one script and its styles as one: each further file takes a connection."""
    html = _source().replace(f'"static/{_FIRST}"', f'"static/{_ALL}"')
    *rest, last = _STYLE.findall(html)
    for name in rest:
        html = html.replace(f'    <link rel="stylesheet" href="static/{name}">\n', "")
    html = html.replace(f'"static/{last}"', f'"static/{_ALL_STYLES}"')
    return re.sub(r'"static/([^"]+\.(?:css|js))"', rf'"static/v-{files_tag()}/\1"', html)


def _source() -> str:
    return (FOLDER / "index.html").read_text(encoding="utf-8")


def _plotly_folder() -> Path:
    import plotly

    return Path(plotly.__file__).parent / "package_data"
