"""Serves the demonstration's page, what the trainers do, and their newest weights.

Nothing here needs a token or changes anything. Documents have entity tags, so that polling costs next to nothing.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles

from oakum_client.demo import FOLDER
from oakum_client.demo.chain import DemoRole
from oakum_client.demo.follower import Follower
from oakum_client.demo.networks import tag_of
from oakum_service.dashboard import FOLDER as DASHBOARD
from oakum_service.dashboard.routes import GUARDS, REVALIDATE, send_file


def demo_app(follower: Follower) -> FastAPI:
    """The page and its documents, from what the follower knows."""
    app = FastAPI(title="Oakum's digits", docs_url=None, redoc_url=None, openapi_url=None)
    own, shared = StaticFiles(directory=FOLDER), StaticFiles(directory=DASHBOARD)

    @app.get("/")
    async def page(request: Request) -> Response:
        return await send_file(own, "index.html", request)

    @app.get("/static/{path:path}")
    async def static(path: str, request: Request) -> Response:
        return await send_file(own, path, request)

    @app.get("/shared/{path:path}")
    async def dashboards(path: str, request: Request) -> Response:
        """Serve what the page has in common with the dashboard: colours, icon, small modules."""
        return await send_file(shared, path, request)

    @app.get("/state")
    async def state(request: Request) -> Response:
        return _document(follower.known.state, request)

    @app.get("/weights/{role}")
    async def weights(role: DemoRole, request: Request) -> Response:
        network = follower.known.networks.get(role)
        if network is None:
            raise HTTPException(404, f"there is no checkpoint of the {role} yet")
        return _document(network.body, request)

    return app


def _document(body: bytes, request: Request) -> Response:
    tag = tag_of(body)
    headers = {**GUARDS, "ETag": tag, "Cache-Control": REVALIDATE}
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this host and port; `port` 0 takes any free port. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def serve_demo(follower: Follower, at: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve the page and follow the trainers until Ctrl-C; the trainers train on."""
    config = uvicorn.Config(demo_app(follower), log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    following = threading.Thread(target=follower.run, name="follower", daemon=True)
    following.start()
    on_ready()
    try:
        uvicorn.Server(config).run(sockets=[at])
    except KeyboardInterrupt:
        pass
    finally:
        follower.end()
        following.join(timeout=10)
