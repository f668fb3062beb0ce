"""/metrics: the service's counters for Prometheus. They hold no names of people, jobs or secrets."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

router = APIRouter(tags=["service"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def show_metrics() -> Response:
    """Every metric of this process, in Prometheus' text format; needs no token."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
