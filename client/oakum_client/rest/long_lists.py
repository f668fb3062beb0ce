"""Lists that the API answers in pages, read whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from oakum_client.rest.connection import Connection
from oakum_service.api.schemas.intervals import HoleList
from oakum_service.api.schemas.series import EvaluationList, EvaluationView
from oakum_service.api.schemas.trainers import TrainerList

PagedList = TypeVar("PagedList", HoleList, TrainerList)

_LONG_PAGE = 5000


def all_trainers(connection: Connection, **query: Any) -> TrainerList:
    """The trainers that the query asks for, the newest last. Raises a `ClientError`."""
    newest, *earlier = _pages(connection, "/v1/trainers", TrainerList, query)
    trainers = [view for page in (newest, *earlier) for view in page.trainers]
    trainers.sort(key=lambda view: (view.submitted_at, view.id))
    return newest.model_copy(update={"trainers": trainers, "next": None})


def all_holes(connection: Connection, since_s: float) -> HoleList:
    """The holes of the last `since_s` seconds, in order of their starts. Raises a `ClientError`."""
    newest, *earlier = _pages(connection, "/v1/holes", HoleList, {"since_s": since_s})
    holes = [hole for page in (newest, *earlier) for hole in page.holes]
    return HoleList(holes=sorted(holes, key=lambda hole: hole.start_at), idle_time=newest.idle_time)


def all_evaluations(connection: Connection, path: str) -> list[EvaluationView]:
    """The evaluations that are kept at `path`, in order of steps. Raises a `ClientError`."""
    evaluations: list[EvaluationView] = []
    while True:
        after = evaluations[-1].step if evaluations else -1
        page = connection.get(path, EvaluationList, after_step=after, limit=_LONG_PAGE)
        later = [evaluation for evaluation in page.evaluations if evaluation.step > after]
        if not later:  # a page that is short may only have large ones
            return evaluations
        evaluations += later


def _pages(
    connection: Connection, path: str, document: type[PagedList], query: dict[str, Any]
) -> Iterator[PagedList]:
    """The pages of a list, the newest first."""
    page = connection.get(path, document, **query)
    yield page
    while page.next is not None:
        page = connection.get(path, document, **query, before=page.next, limit=_LONG_PAGE)
        yield page
