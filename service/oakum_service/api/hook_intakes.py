"""The routes of schedulers' hooks, and who takes the hooks' reports in this application."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI

from oakum_service.api.auth import hook_or_admin
from oakum_service.api.context import Context
from oakum_service.schedulers.entry import HookIntake
from oakum_service.schedulers.opening import entries
from oakum_service.schedulers.port import HookEvent, HookListener


def _routes() -> APIRouter:
    """The routes of every scheduler in the table, for whoever may speak for the main scheduler."""
    routes = APIRouter(dependencies=[Depends(hook_or_admin)])
    for entry in entries().values():
        if entry.router is not None:
            routes.include_router(entry.router)
    return routes


router = _routes()


def open_hook_intakes(context: Context) -> dict[str, HookIntake]:
    """Name of a scheduler -> what takes its hooks' reports for this app, and tells this process's adapter and the
    controller of new events."""

    def tell(event: HookEvent) -> None:
        if isinstance(context.scheduler, HookListener):
            context.scheduler.on_hook(event)
        context.peers.pass_on_hook(event)
        context.news_for_controller.notify()

    intakes = {
        name: entry.open_hooks(context.sessions, context.readers, tell) for name, entry in entries().items()
    }
    return {name: intake for name, intake in intakes.items() if intake is not None}


def present_intake(app: FastAPI) -> HookIntake | None:
    """The intake of the scheduler that this service has; None if that has no hooks."""
    context, intakes = app.state.context, app.state.hook_intakes
    assert isinstance(context, Context)
    intake: HookIntake | None = intakes.get(context.scheduler.name)
    return intake
