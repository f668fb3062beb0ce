"""The dashboard, and the part of the API that it reads, with a simulated cluster's documents."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse

from oakum_service.api.schemas.cluster import ClusterView, NodeList
from oakum_service.api.schemas.events import EventList
from oakum_service.api.schemas.intervals import Timeline
from oakum_service.api.schemas.node_history import FoundNodes, Occupancy, TimelineRows
from oakum_service.api.schemas.plans import PlanList
from oakum_service.api.schemas.series import Series
from oakum_service.api.schemas.tokens import SessionRequest, SessionView
from oakum_service.api.schemas.trainers import TrainerList
from oakum_service.api.session_cookie import (
    drop_session,
    keep_session,
    page_key,
    require_guard,
    session_text,
)
from oakum_service.dashboard.routes import router as dashboard
from oakum_service.errors import Unauthorized
from simulated_cluster import SimulatedCluster

TOKEN = "a-token-for-tests"
ME = SessionView(id="1", name="anna", role="admin", expires_at=None, may_submit=True)


def serve_documents(cluster: SimulatedCluster) -> FastAPI:
    """An application for one test: it knows one token and the sessions that were begun with it."""
    texts: set[str] = set()

    def signed_in(request: Request) -> None:
        try:
            text = session_text(request)
        except Unauthorized as error:
            raise HTTPException(401, "signed out") from error
        if text not in texts:
            raise HTTPException(401, "signed out")

    app = FastAPI()
    app.include_router(dashboard)
    app.include_router(_sessions(texts, signed_in))
    for routes in (_lists(cluster), _picture(cluster), _news(cluster)):
        app.include_router(routes, dependencies=[Depends(signed_in)])
    return app


def _sessions(texts: set[str], signed_in: Callable[[Request], None]) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/session")
    def _sign_in(asked: SessionRequest, request: Request, response: Response) -> SessionView:
        require_guard(request)
        if asked.token != TOKEN:
            raise HTTPException(401, "unknown token")
        texts.add(text := secrets.token_hex(16))
        keep_session(request, response, text, 3600.0)
        return ME.model_copy(update={"key": page_key(text)})

    @router.get("/v1/session", dependencies=[Depends(signed_in)])
    def _session() -> SessionView:
        return ME

    @router.delete("/v1/session", dependencies=[Depends(signed_in)], status_code=204)
    def _sign_out(request: Request) -> Response:
        texts.discard(session_text(request) or "")
        response = Response(status_code=204)
        drop_session(request, response)
        return response

    return router


def _lists(cluster: SimulatedCluster) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/cluster")
    def _cluster() -> ClusterView:
        return cluster.cluster()

    @router.get("/v1/trainers")
    def _trainers() -> TrainerList:
        return TrainerList(trainers=cluster.trainers())

    @router.get("/v1/trainers/{ref}/series")
    def _series(ref: str, after: float = 0.0) -> Series:
        points = cluster.series(ref.removeprefix("t-")).points
        return Series(points=[point for point in points if point.at > after])

    @router.get("/v1/nodes")
    def _nodes() -> NodeList:
        return cluster.node_list()

    @router.get("/v1/plans")
    def _plans() -> PlanList:
        return cluster.plans()

    return router


def _picture(cluster: SimulatedCluster) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/timeline")
    def _timeline(since_s: float = 180) -> Timeline:
        return cluster.timeline(since_s)

    @router.get("/v1/timeline/rows")
    def _rows(from_at: float, to_at: float, node: list[str] = Query()) -> TimelineRows:
        return cluster.rows(from_at, to_at, node)

    @router.get("/v1/timeline/nodes")
    def _found(from_at: float, to_at: float, find: str) -> FoundNodes:
        return cluster.found(from_at, min(to_at, cluster.clock()), find)

    @router.get("/v1/timeline/occupancy")
    def _occupancy(from_at: float, to_at: float, columns: int, bands: int) -> Occupancy:
        return cluster.occupancy(from_at, to_at, columns, min(bands, len(cluster.nodes)))

    return router


def _news(cluster: SimulatedCluster) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/events/recent")
    def _recent(limit: int = 50) -> EventList:
        return EventList(events=cluster.events()[-limit:])

    @router.get("/v1/events")
    def _events(request: Request, last_event_id: int = Header(0)) -> StreamingResponse:
        return StreamingResponse(_stream(cluster, request, last_event_id), media_type="text/event-stream")

    return router


async def _stream(cluster: SimulatedCluster, request: Request, after: int) -> AsyncIterator[str]:
    """Only what was published: a page draws itself anew with each event, which takes processor time."""
    cluster.followers += 1
    try:
        yield ": welcome\n\n"
        while not await request.is_disconnected():
            for event in [*cluster.published]:
                if event.id > after:
                    after = event.id
                    yield f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
            await asyncio.sleep(0.1)
    finally:
        cluster.followers -= 1
