"""Serves the dashboard's page and files.

The page holds a token, so its content security policy forbids everything that does not come from this server.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles

from oakum_service.dashboard import FOLDER

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
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
REVALIDATE = "no-cache"
_MONTH = f"public, max-age={30 * 24 * 3600}"

_PAGE = StaticFiles(directory=FOLDER)

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page(request: Request) -> Response:
    """Serve the dashboard's page."""
    return await send_file(_PAGE, "index.html", request)


@router.get("/static/plotly.min.js")
async def plotly(request: Request) -> Response:
    """Serve Plotly's bundle from the installed package: 5 MB that change only with Plotly's version."""
    return await send_file(StaticFiles(directory=_plotly_folder()), "plotly.min.js", request, _MONTH)


@router.get("/static/{path:path}")
async def static(path: str, request: Request) -> Response:
    """Serve the page's style, scripts and icon."""
    return await send_file(_PAGE, path, request)


async def send_file(files: StaticFiles, path: str, request: Request, caching: str = REVALIDATE) -> Response:
    """One file of a page, with the headers that keep everything from elsewhere away."""
    answer = await files.get_response(path, request.scope)
    answer.headers.update({**GUARDS, "Cache-Control": caching})
    return answer


def _plotly_folder() -> Path:
    import plotly

    return Path(plotly.__file__).parent / "package_data"
