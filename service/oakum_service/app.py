"""The FastAPI application over a context; everything it serves, in one place."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from oakum_service.api import (
    cluster,
    events,
    fragments,
    hold,
    hooks,
    metrics,
    plans,
    problems,
    snapshots,
    trainers,
)
from oakum_service.api.body_limit import BodyLimit
from oakum_service.api.context import Context
from oakum_service.dashboard.routes import router as dashboard


def create_app(context: Context) -> FastAPI:
    """The REST API and the dashboard."""
    app = FastAPI(
        title="Oakum",
        version=version("oakum"),
        description="Fills the idle node-time of a cluster with elastic PyTorch training.",
        # These pages load their scripts from the Internet, which a login node may not reach.
        docs_url=None,
        redoc_url=None,
    )
    app.state.context = context
    app.state.hooks, app.state.posters = hooks.open_journal(context), {}
    problems.install(app)
    app.add_middleware(BodyLimit)
    for module in (trainers, cluster, plans, events, fragments, hold, hooks, snapshots, metrics):
        app.include_router(module.router)

    @app.get("/healthz", tags=["service"])
    def healthz() -> dict[str, str]:
        """Whether the service answers; needs no token."""
        return {"status": "ok"}

    app.include_router(dashboard)
    return app
