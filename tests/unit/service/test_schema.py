"""The migrations on SQLite: they build what the models say, and take all of it away again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from oakum_service.db.engine import (
    check_schema,
    downgrade,
    migrations_dir,
    open_engine,
    open_readers,
    open_sessions,
    upgrade,
)
from oakum_service.db.models.base import Base
from oakum_service.db.models.callers import ApiToken
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.db.models.usage import Harvest
from oakum_service.errors import ConfigurationError

ROWS_OF_0002: dict[str, dict[str, object]] = {
    "trainers": {
        **{
            "id": "t1",
            "name": "digits",
            "spec": '{"name": "digits", "entrypoint": "a:b", "global_batch": 8, "epochs": 1}',
            "state": "waiting",
            "message": "",
            "cancel_requested": False,
        },
        **{"submitted_at": 5.0, "generation": 0, "members": "[]", "over": 0, "revision": 0, "published_at": 0.0},
        **{"progress": "{}", "steps_at_size": "{}", "nodes_lost": 0, "nodes_gained": 0, "rescales": 0},
        **{"stall_s": 0.0, "crashes": 0, "crashed_step": -1},
    },
    "fragments": {
        **{"id": "f1", "trainer_id": "t1", "node": "n1", "state": "live", "released": False},
        **{"launched_at": 6.0, "cause": ""},
    },
    "plans": {
        **{"id": 1, "snapshot": 1, "made_at": 5.0, "objective": "throughput", "look_ahead_s": 30.0, "value": 1.0},
        **{"bound": 1.0, "solver": "greedy", "solve_s": 0.1, "optimal": True, "allocations": "{}"},
    },
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(f"sqlite:///{tmp_path / 'oakum.db'}")
    yield engine
    engine.dispose()


def differences(engine: Engine) -> list[object]:
    """What a new migration would have to change, as `alembic check` finds it."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, Base.metadata))


def test_an_upgraded_database_is_what_the_models_say(engine: Engine) -> None:
    upgrade(engine)
    assert differences(engine) == []
    check_schema(engine)


def test_every_revision_is_on_the_one_way_to_the_newest() -> None:
    scripts = ScriptDirectory(str(migrations_dir()))
    assert len(scripts.get_heads()) == 1
    on_the_way = [script.revision for script in scripts.walk_revisions("base", "head")]
    files = list((migrations_dir() / "versions").glob("*.py"))
    assert len(on_the_way) == len(files)


def test_a_downgrade_to_the_base_leaves_nothing(engine: Engine) -> None:
    upgrade(engine)
    downgrade(engine, "base")
    assert set(inspect(engine).get_table_names()) <= {"alembic_version"}
    upgrade(engine)
    assert differences(engine) == []


def test_rows_outlive_the_way_to_the_newest_revision_and_back(engine: Engine) -> None:
    """A trainer with fragments, which SQLite must not drop on the way; a plan of a long objective."""
    upgrade(engine)
    downgrade(engine, "0002")
    fill(engine)
    upgrade(engine)
    with open_sessions(engine).begin() as session:
        trainer = session.get_one(Trainer, "t1")
        assert (trainer.user_name, trainer.guard_waited_s, trainer.guard_served_s) == (None, 0.0, 0.0)
        assert trainer.waiting_since is None
        assert (trainer.fragment_slots, trainer.slots_per_fragment) == (None, 1)
        session.get_one(PlanRecord, 1).objective = "weight * samples / rate_one / (1 + attained)"
    downgrade(engine, "0002")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM fragments")).scalars().all() == ["f1"]
        assert connection.execute(text("SELECT count(*) FROM plans")).scalar_one() == 1


def test_what_was_measured_and_made_durable_before_0004_is_kept(engine: Engine) -> None:
    upgrade(engine)
    downgrade(engine, "0002")
    fill(engine)
    with engine.begin() as connection:
        for name, progress, startup_s in (
            ("t2", told(70), 3.5),
            ("t3", told(9223372036854775808), None),
        ):
            columns = ROWS_OF_0002["trainers"] | {"id": name, "progress": progress, "startup_s": startup_s}
            insert(connection, "trainers", columns)
    upgrade(engine)
    with open_sessions(engine).begin() as session:
        rows = {row.id: row for row in session.query(Trainer)}
        assert {name: row.checkpoint_step for name, row in rows.items()} == {"t1": None, "t2": 70, "t3": None}
        assert {name: row.durations for name, row in rows.items()} == {
            "t1": {},
            "t2": {"start_up": (3.5,)},
            "t3": {},
        }
        assert all((row.account, row.checkpoint_at) == (None, None) for row in rows.values())
        assert session.get_one(Fragment, "f1").warnings == ()
        rows["t2"].durations = {"start_up": (3.5, 4.5), "grow": (1.0,)}
    downgrade(engine, "0003")
    with engine.connect() as connection:
        kept = connection.execute(text("SELECT id, startup_s FROM trainers ORDER BY id")).all()
    assert kept == [("t1", None), ("t2", 4.5), ("t3", None)]


def test_what_fragments_had_before_0014_is_summed_up(engine: Engine) -> None:
    """Warming up as well as training; the live fragment is added when it ends."""
    upgrade(engine)
    downgrade(engine, "0002")
    fill(engine)
    with engine.begin() as connection:
        for name, training_at, ended_at in (("f2", 86_409.0, 86_430.0), ("f3", None, 86_410.0)):
            ended = {"id": name, "state": "ended", "launched_at": 86_402.0, "ended_at": ended_at}
            insert(connection, "fragments", ROWS_OF_0002["fragments"] | ended | {"training_at": training_at})
    upgrade(engine)
    with open_sessions(engine).begin() as session:
        trainer = session.get_one(Trainer, "t1")
        assert (trainer.past_node_s, trainer.past_warm_up_node_s) == (28.0 + 8.0, 7.0 + 8.0)
        assert session.get_one(Harvest, 1).node_s == 21.0


def told(checkpoint_step: int) -> str:
    """A progress as the service wrote it at revision 0002."""
    document = {"generation": 1, "nodes": 1, "step": 80, "total_steps": 90, "epoch": 0, "samples": 640}
    return json.dumps(document | {"checkpoint_step": checkpoint_step})


def fill(engine: Engine) -> None:
    """Rows as the service wrote them at revision 0002."""
    with engine.begin() as connection:
        for table, columns in ROWS_OF_0002.items():
            insert(connection, table, columns)


def insert(connection: Connection, table: str, columns: dict[str, object]) -> None:
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(f":{name}" for name in columns)
    connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), columns)


def test_an_upgrade_of_the_newest_changes_nothing(engine: Engine) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO tokens (digest, name, role, created_at) VALUES ('d', 'alice', 'user', 0.0)")
        )
    upgrade(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM tokens")).scalars().all() == ["alice"]


def test_an_empty_database_is_not_served(engine: Engine) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_schema(engine)
    newest = ScriptDirectory(str(migrations_dir())).get_current_head()
    assert str(caught.value) == (
        f"the database's schema is at revision None, expected {newest}: run `oakum db upgrade`"
    )


def test_a_database_of_a_newer_oakum_is_left_alone(engine: Engine) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match=r"'9999': a newer version of Oakum has made it"):
        upgrade(engine)
    with pytest.raises(ConfigurationError, match="9999"):
        check_schema(engine)


def test_a_column_that_no_migration_makes_is_noticed(engine: Engine) -> None:
    """The comparison these tests rely on can fail."""
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE tokens DROP COLUMN role"))
        connection.execute(text("DROP TABLE lease"))
    assert len(differences(engine)) == 2


def test_readers_do_not_wait_for_a_writer(engine: Engine) -> None:
    """On SQLite a reader takes no lock: an API that answers must not depend on the controller's pace."""
    upgrade(engine)
    with open_sessions(engine).begin() as writer:
        writer.add(ApiToken(digest="d", name="alice", role="user", created_at=0.0))
        writer.flush()
        with open_readers(engine).begin() as reader:
            assert reader.query(ApiToken).count() == 0
    with open_readers(engine).begin() as reader:
        assert reader.query(ApiToken).count() == 1
