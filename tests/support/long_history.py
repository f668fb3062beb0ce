"""A database with weeks of use: trainers that have ended, their fragments, stretches of nodes and foreground
starts.

All is made by a few statements of SQL, from the rows of one trainer.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import text

from api_under_test import ApiUnderTest
from oakum_service.db.models.base import Base
from oakum_service.db.models.fragments import FragmentState

TRAINERS_A_DAY = 144
_DAY_S = 86400.0
_VALUES = {"{node}": "n1", "{user}": "user", "{name}": "plan", "{plan_id}": "1", "{job_id}": "1"}
_STREAMS = ("/v1/events", "/v1/fragments/{fragment_id}/directive")


def fill(api: ApiUnderTest, now: float, days: int, trainers_a_day: int = TRAINERS_A_DAY) -> None:
    """Add what so many days before `now` leave: trainers, seven fragments of each, three stretches and a
    foreground start for each, and sums of the hours."""
    num = trainers_a_day * days
    spacing_s = _DAY_S / trainers_a_day
    trainer, fragment = _first(api, now)
    ended = {name: f"t.{name} - {spacing_s} * n.i" for name in ("submitted_at", "started_at", "ended_at")}
    own = {"id": "'t-' || n.i", "name": "'ended-' || n.i"}
    repeat(api, "trainers", num, f"t.id = '{trainer}'", own | ended)
    insert(
        api,
        "trainer_tags (trainer_id, tag, submitted_at)",
        "t.id, 'often', t.submitted_at",
        1,
        ", trainers t WHERE substr(t.id, 1, 2) = 't-'",
    )
    times = {name: f"t.{name} - {spacing_s / 7} * n.i" for name in ("launched_at", "training_at", "ended_at")}
    own = {"id": "'f-' || n.i", "trainer_id": "'t-' || (1 + (n.i - 1) / 7)", "node": "'n' || (1 + n.i % 3)"}
    repeat(api, "fragments", 7 * num, f"t.id = '{fragment}'", own | times)
    insert(
        api,
        "node_intervals (node, state, job, job_name, start_at, end_at)",
        f"'n' || (1 + n.i % 3), CASE n.i % 2 WHEN 0 THEN 'hole' ELSE 'foreground' END, 'j' || n.i, 'job', "
        f"{now} - {spacing_s / 3} * (n.i + 1), {now} - {spacing_s / 3} * n.i",
        3 * num,
    )
    insert(
        api,
        "foreground_starts (job, started_at, num_nodes, delay_s)",
        f"'h' || n.i, {now} - {spacing_s} * n.i, 1 + n.i % 8, (n.i % 100) / 50.0",
        num,
    )
    hour = int(now // 3600) - 1
    insert(api, "usage_hours (hour, idle_node_s, used_node_s)", f"{hour} - n.i, 3600.0, 1800.0", 24 * days)


def _first(api: ApiUnderTest, now: float) -> tuple[str, str]:
    trainer: str = api.submit(name="ended", max_nodes=4)["id"]
    fragment = api.add_fragment(
        trainer,
        "n3",
        state=FragmentState.ENDED,
        launched_at=now - 1300.0,
        training_at=now - 1290.0,
        ended_at=now - 1200.0,
        cause="finished",
    )
    times = {"submitted_at": now - 1310.0, "started_at": now - 1300.0, "ended_at": now - 1200.0}
    api.change_row(trainer, state="finished", members=[], **times)
    return trainer, fragment


def repeat(api: ApiUnderTest, table: str, number: int, which: str, own: dict[str, str]) -> None:
    """Add so many copies of the row `t` that the condition `which` names, with SQL for the columns that are their
    own, in which `n.i` counts from 1."""
    columns = [column.name for column in Base.metadata.tables[table].columns]
    values = ", ".join(own.get(name, f't."{name}"') for name in columns)
    named = ", ".join(f'"{name}"' for name in columns)
    insert(api, f"{table} ({named})", values, number, f", {table} t WHERE {which}")


def insert(api: ApiUnderTest, into: str, values: str, number: int, of: str = "") -> None:
    """Add so many rows with these values, SQL in which `n.i` counts from 1."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {number})"
    with api.engine.begin() as connection:
        connection.execute(text(f"{numbers} INSERT INTO {into} SELECT {values} FROM n{of}"))


def paths(api: ApiUnderTest, now: float) -> Iterator[str]:
    """Every path that can be got, with each of its limits, and with the filters of lists."""
    window = f"from_at={now - 5 * 86400}&to_at={now}"
    for path, operations in api.app.openapi()["paths"].items():
        if "get" not in operations or path in _STREAMS:
            continue
        own = path.replace("{ref}", "ended-5")
        for place, value in _VALUES.items():
            own = own.replace(place, value)
        asked = {one["name"]: one["schema"] for one in operations["get"].get("parameters", ())}
        needed = f"{window}&node=n1&find=e&" if "from_at" in asked else ""
        limits = (1, asked["limit"]["maximum"]) if "limit" in asked else (None,)
        for limit in limits:
            yield f"{own}?{needed}" + ("" if limit is None else f"limit={limit}")
    for filters in (
        "state=failed",
        "state=finished",
        "user=nobody",
        "user=user",
        "user=user&state=failed",
        "tag=often",
        "tag=never",
    ):
        yield f"/v1/trainers?{filters}&limit=1"
