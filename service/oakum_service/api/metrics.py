"""/metrics: the service's metrics for Prometheus. They contain no names of people or jobs and no secrets."""

from __future__ import annotations

import math
import time

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from oakum_service import instruments
from oakum_service.api.context import Context, InContext
from oakum_service.api.hook_intakes import present_intake
from oakum_service.api.report_inbox import ReportInbox

router = APIRouter(tags=["service"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def show_metrics(context: InContext, request: Request) -> Response:
    """Every metric of this process, in Prometheus' text format; needs no token."""
    reports: ReportInbox = request.app.state.reports
    _measure(context, reports)
    if (intake := present_intake(request.app)) is not None:
        intake.measure()
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _measure(context: Context, reports: ReportInbox) -> None:
    """Set the gauges that are known at the moment of asking only."""
    taken_at, turn_age_s = context.snapshot_at(), context.turns.age_s
    instruments.SNAPSHOT_AGE_S.set(math.nan if taken_at is None else max(0.0, time.time() - taken_at))
    silence = context.silence()
    instruments.SILENT_S.set(0.0 if silence is None else max(0.0, time.time() - silence.since))
    instruments.TURN_AGE_S.set(math.nan if turn_age_s is None else turn_age_s)
    instruments.CONTROLLER.set(turn_age_s is not None)
    instruments.WRITABLE.set(context.writability.fault is None)
    instruments.REPORT_INTERVAL_S.set(reports.interval_s(tells_progress=False))
    instruments.EVENT_STREAMS.set(len(context.listeners))
