"""Serves the page and its files.

The page holds a token, so the policy lets nothing run or load that does not come from this server.
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
_GUARDS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_REVALIDATE = "no-cache"
_MONTH = f"public, max-age={30 * 24 * 3600}"

_PAGE = StaticFiles(directory=FOLDER)

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page(request: Request) -> Response:
    """The dashboard."""
    return await _file(_PAGE, "index.html", request, _REVALIDATE)


@router.get("/static/plotly.min.js")
async def plotly(request: Request) -> Response:
    """Plotly's own bundle, out of the installed package: 5 MB that change with its version only."""
    return await _file(StaticFiles(directory=_plotly_folder()), "plotly.min.js", request, _MONTH)


@router.get("/static/{path:path}")
async def static(path: str, request: Request) -> Response:
    """The page's style, scripts and icon."""
    return await _file(_PAGE, path, request, _REVALIDATE)


async def _file(files: StaticFiles, path: str, request: Request, caching: str) -> Response:
    answer = await files.get_response(path, request.scope)
    answer.headers.update({**_GUARDS, "Cache-Control": caching})
    return answer


def _plotly_folder() -> Path:
    import plotly

    return Path(plotly.__file__).parent / "package_data"
