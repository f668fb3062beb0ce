"""The service on PostgreSQL: a private server on a Unix socket, started here and gone at the end."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, inspect, select, text

from api_under_test import SPEC
from oakum_service.config import Settings
from oakum_service.db import event_log
from oakum_service.db.backup import back_up, examine, refuse_downgrade, revisions_after
from oakum_service.db.engine import (
    Sessions,
    check_schema,
    downgrade,
    open_engine,
    open_readers,
    open_sessions,
    upgrade,
)
from oakum_service.db.installation import claim
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.base import Base
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import ConfigurationError
from oakum_service.schedulers.slurm.preflight import database
from oakum_service.schedulers.slurm.preflight.finding import Level
from oakum_service.states import TrainerState
from plan_records import plan_record
from postgres_database import empty_url as empty_url
from postgres_database import engine as engine
from postgres_database import is_blocked
from postgres_database import postgres as postgres
from postgres_database import sessions as sessions
from postgres_database import url as url
from postgres_server import ON_POSTGRES, PostgresServer
from running_service import EXAMPLES, TASKS, RunningService, small_spec, state_of
from waiting import wait_until
from warm_processes import run_warm

pytestmark = [*ON_POSTGRES]


def oakum(url: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the CLI against a database."""
    environment = os.environ | {"OAKUM_DATABASE_URL": url, "OAKUM_DATA_DIR": str(folder), "COLUMNS": "300"}
    return run_warm("oakum", *arguments, environment=environment)


def differences(engine: Engine) -> list[object]:
    """What a new migration would have to change, as `alembic check` finds it."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, Base.metadata))


class TestSchema:
    def test_the_command_builds_what_the_models_say(self, empty_url: str, tmp_path: Path) -> None:
        done = oakum(empty_url, tmp_path, "db", "upgrade")
        assert (done.returncode, done.stdout) == (0, "the schema is up to date\n"), done.stderr
        engine = open_engine(empty_url)
        assert differences(engine) == []
        check_schema(engine)
        engine.dispose()
        assert oakum(empty_url, tmp_path, "token", "create", "alice").stdout.startswith("oakum-")

    def test_rows_outlive_the_way_to_an_older_schema_and_back_and_nothing_outlives_that_to_the_base(
        self, engine: Engine, sessions: Sessions
    ) -> None:
        """A plan's objective is cut where the older schema has no room for it."""
        told = {"generation": 1, "nodes": 1, "step": 80, "total_steps": 90, "epoch": 0, "samples": 640}
        facts = {"spec": SPEC, "state": "waiting", "submitted_at": 5.0, "durations": {"start_up": (3.5,)}}
        with sessions.begin() as session:
            session.add(plan_record(objective="x" * 500))
            session.add(Trainer(id="t1", name="digits", progress=told | {"checkpoint_step": 70}, **facts))
        downgrade(engine, "0002")
        with engine.connect() as connection:
            assert connection.execute(text("SELECT objective FROM plans")).scalar_one() == "x" * 32
        upgrade(engine)
        with sessions.begin() as session:
            trainer = session.get_one(Trainer, "t1")
            assert trainer.durations == {"start_up": (3.5,)}
            assert (trainer.checkpoint_step, trainer.account) == (70, None)
        assert differences(engine) == []
        downgrade(engine, "base")
        assert set(inspect(engine).get_table_names()) <= {"alembic_version"}
        assert inspect(engine).get_sequence_names() == []

    def test_upgrades_at_the_same_moment_do_not_meet(self, empty_url: str) -> None:
        engines = [open_engine(empty_url) for _ in range(3)]
        with ThreadPoolExecutor(1) as one:  # alembic keeps its state in its module: not for several threads
            with open_sessions(engines[0]).begin() as first:
                first.execute(text("SELECT 1"))
                other = one.submit(upgrade, engines[1])
                wait_until("the upgrade waits its turn", lambda: is_blocked(engines[2]))
                assert not other.done()
            other.result(30.0)
        check_schema(engines[2])
        for each in engines:
            each.dispose()


class TestRefusals:
    def test_the_service_does_not_serve_an_empty_database(self, empty_url: str, tmp_path: Path) -> None:
        for arguments in (("serve", "--port", "0"), ("token", "create", "alice")):
            done = oakum(empty_url, tmp_path, *arguments)
            assert done.returncode == 1
            assert done.stderr.startswith("oakum: the database's schema is at revision None, expected ")
            assert done.stderr.endswith(": run `oakum db upgrade`\n")

    def test_a_server_that_does_not_answer_is_named(self, tmp_path: Path) -> None:
        url = f"postgresql://oakum:geheim@/oakum?host={tmp_path}"
        for arguments in (("serve", "--port", "0"), ("db", "upgrade"), ("token", "list")):
            done = oakum(url, tmp_path, *arguments)
            assert done.returncode == 1
            assert done.stderr.startswith("oakum: database postgresql+psycopg://oakum:***@/oakum")
            assert done.stderr.rstrip().endswith("check OAKUM_DATABASE_URL and that the server runs")
            assert "Traceback" not in done.stderr

    def test_so_is_one_that_knows_no_such_database(self, postgres: PostgresServer) -> None:
        engine = open_engine(f"postgresql://oakum@/nowhere?host={postgres.folder}")
        with pytest.raises(ConfigurationError, match='database "nowhere" does not exist'):
            check_schema(engine)
        engine.dispose()


def test_a_service_with_another_data_directory_is_refused(sessions: Sessions, url: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with sessions.begin() as session:
        claim(session, b"the first one's secret", first)
    done = oakum(url, second, "serve", "--port", "0")
    assert done.returncode == 1, done.stderr
    told = " ".join(done.stderr.split())
    assert f"the database belongs to the service with the data directory {first}, first started on " in told
    assert f"this one has {second}. Start this service with that directory" in told
    with sessions.begin() as session:
        claim(session, b"the first one's secret", second)  # the directory may move


def test_a_trainer_is_trained_to_its_end(url: str, tmp_path: Path) -> None:
    service = RunningService(tmp_path, nodes=1, PYTHONPATH=f"{EXAMPLES}:{TASKS}", OAKUM_DATABASE_URL=url)
    try:
        client = service.start()
        client.submit(small_spec("small", epochs=3, max_nodes=1))
        wait_until("it ends", lambda: state_of(client, "small").ended)
        view = client.trainer("small")
        assert view.state is TrainerState.FINISHED, view.message
        assert view.step == view.total_steps == sum(view.steps_at_size.values()) == 30
        assert view.samples == view.total_samples
        assert view.time_spent is not None
        assert view.time_spent.training_s > 0
        parts = ("training_s", "grow_s", "shrink_s", "loss_s", "cold_start_s", "waiting_s")
        counted_s = sum(getattr(view.time_spent, part) for part in parts)
        assert counted_s == pytest.approx((view.ended_at or 0.0) - (view.started_at or 0.0))
        assert client.cluster().used_node_s > 0
        assert client.plans().plans
        service.interrupt()
        assert not service.processes()
        assert service.start().trainer("small").state is TrainerState.FINISHED
    finally:
        service.end()
    engine = open_engine(url)
    with open_readers(engine).begin() as session:
        kinds = set(session.execute(select(EventRecord.kind)).scalars())
        assert session.execute(select(Trainer.name)).scalars().all() == ["small"]
        assert session.execute(select(Report)).first() is not None
    engine.dispose()
    assert {"trainer.submitted", "plan.made", "generation.formed", "trainer.finished"} <= kinds
    assert not (service.data_dir / "oakum.db").exists()


def test_a_database_of_another_encoding_is_refused_with_what_to_do(postgres: PostgresServer) -> None:
    with postgres.connect("postgres") as connection:
        connection.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    with pytest.raises(ConfigurationError, match="its encoding is SQL_ASCII, expected UTF8: make another one"):
        upgrade(open_engine(f"postgresql://oakum@/plain?host={postgres.folder}"))


def test_a_check_sees_that_the_server_itself_answers(url: str) -> None:
    (found,) = database.check(Settings(database_url=url))
    assert (found.level, found.found) == (Level.OK, "it answers")


def test_a_database_is_copied_checked_and_taken_back(
    engine: Engine, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{postgres.programs}:{os.environ['PATH']}")
    with open_sessions(engine).begin() as session:
        event_log.record(session, "trainer.submitted", "digits", "to be found again")
    back_up(engine, tmp_path / "oakum.dump")
    assert (tmp_path / "oakum.dump").read_bytes().startswith(b"PGDMP")
    assert (tmp_path / "oakum.dump").stat().st_mode & 0o777 == 0o600
    assert examine(engine).faults == []
    assert revisions_after(engine, "0019")[-1] == "0020  Quotas of single users"
    refuse_downgrade(engine)
    downgrade(engine, "0018")
    assert "is at revision 0018" in examine(engine).faults[0]
    upgrade(engine)
    assert examine(engine).faults == []
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM events"))
    assert LeaseHolder(open_sessions(engine), alone=False).acquire()
    with pytest.raises(ConfigurationError, match="a service uses the database"):
        refuse_downgrade(engine)
