"""The FastAPI application: all routers of the API and the dashboard, over one `Context`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import version

from fastapi import APIRouter, Depends, FastAPI
from fastapi.middleware.gzip import GZipMiddleware

from oakum_service import api
from oakum_service.api import fragments, hook_intakes, problems, readiness
from oakum_service.api.agent_calls import AgentCalls
from oakum_service.api.body_limit import BodyLimit
from oakum_service.api.context import Context
from oakum_service.api.event_feed import EventFeed
from oakum_service.api.plain_values import refuse_odd_values
from oakum_service.api.rate_limit import RateLimit
from oakum_service.api.report_inbox import ReportInbox
from oakum_service.api.request_ids import RequestIds
from oakum_service.api.request_metrics import RequestMetrics
from oakum_service.api.revisions import Revisions
from oakum_service.api.statuses import document_statuses
from oakum_service.api.token_uses import TokenUses
from oakum_service.dashboard.routes import router as dashboard

_COMPRESSION = 4
"""zlib's level: 1 is the fastest, 9 the smallest."""
_FRAGMENT_REQUESTS_PER_S = 25.0
"""Requests per second with one fragment's token: an agent sends ten reports at most, and asks again after each
directive that it gets."""
_REFUSALS_PER_S = 0.2
"""Refused requests of one token per second that the audit log takes up; more would only fill it."""


def create_app(context: Context) -> FastAPI:
    """Build the REST API and the dashboard over the service's parts. Returns the application."""
    return add_parts(routed_app(), context)


def add_parts(app: FastAPI, context: Context) -> FastAPI:
    """Store the service's parts, such as its database sessions and rate limits, in the application's state, where
    the routes of `routed_app` look for them. Returns the application."""
    app.state.context = context
    app.state.reports = ReportInbox(context.reporters, context.news_for_controller)
    app.state.revisions = Revisions(context.readers, context.news_for_readers)
    app.state.event_feed = EventFeed(context.readers, context.news_for_readers)
    app.state.token_uses = TokenUses(context.sessions)
    app.state.rate_limit = RateLimit(context.settings.quota.requests_per_s)
    app.state.fragment_limit = RateLimit(_FRAGMENT_REQUESTS_PER_S)
    app.state.readiness = readiness.ReadinessProbe(context)
    app.state.refusals = RateLimit(_REFUSALS_PER_S)
    app.state.hook_intakes, app.state.recent_hook_tokens = hook_intakes.open_hook_intakes(context), {}
    return app


def routed_app() -> FastAPI:
    """Build the application with its routes, but without the service's parts that the routes use. The OpenAPI
    document needs no more; `add_parts` adds the parts. Returns the application."""
    app = FastAPI(
        title="Oakum",
        version=version("oakum"),
        description="Fills the idle node-time of a cluster with elastic PyTorch training.",
        # FastAPI's documentation pages load scripts from the Internet, which a login node may not reach.
        docs_url=None,
        redoc_url=None,
    )
    problems.install(app)
    app.add_middleware(BodyLimit)
    # Lists of thousands of nodes shrink to a tenth. Event streams are left as they are.
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=_COMPRESSION)
    app.add_middleware(AgentCalls)
    app.add_middleware(RequestIds)
    app.add_middleware(RequestMetrics)
    plain_values_only = [Depends(refuse_odd_values)]
    for router in _routers():
        # Agents tell what users' code has said, whatever it is: their reports are mended, not refused.
        app.include_router(router, dependencies=[] if router is fragments.router else plain_values_only)
    app.include_router(dashboard)
    document_statuses(app)
    return app


def _routers() -> Iterator[APIRouter]:
    """The routers of the REST API, in order of their modules' names: a module in `oakum_service.api` that has a
    `router` serves its routes."""
    for module in pkgutil.iter_modules(api.__path__):
        router = getattr(importlib.import_module(f"{api.__name__}.{module.name}"), "router", None)
        if isinstance(router, APIRouter):
            yield router
