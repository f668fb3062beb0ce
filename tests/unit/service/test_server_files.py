"""What the service keeps in its data directory, who may read it, and that only one service uses it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cells import each
from oakum_client.serve_command import describe_ended, submit_once
from oakum_service.api.auth import Role
from oakum_service.config import LocalClusterSettings, Settings
from oakum_service.db.models.callers import ApiToken
from oakum_service.db.models.events import AuditRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import ConfigurationError
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.identity.tokens import digest
from oakum_service.server import OakumServer, _secret
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec

Open = Callable[[], OakumServer]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", port=0, local=LocalClusterSettings(nodes=1, load=0))


def close(server: OakumServer) -> None:
    """Release what the end of its process would release for a server that never ran."""
    server._lock.release()
    server._socket.close()


@pytest.fixture
def open_server(settings: Settings) -> Iterator[Open]:
    """Opens the service of the data directory; each is closed at the test's end."""
    opened: list[OakumServer] = []

    def open_() -> OakumServer:
        opened.append(OakumServer(settings))
        return opened[-1]

    yield open_
    for server in opened:
        close(server)


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_what_lets_someone_in_is_readable_by_its_owner_alone(open_server: Open, settings: Settings) -> None:
    before = os.umask(0)
    try:
        open_server()
    finally:
        os.umask(before)
    assert mode(settings.data_dir) == 0o700
    private = [settings.client_file, settings.service_file, settings.data_dir / "secret"]
    assert {file.name: mode(file) for file in private} == {file.name: 0o600 for file in private}


def test_a_data_directory_that_others_could_read_is_closed_to_them(
    open_server: Open, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    close(open_server())
    database = settings.data_dir / "oakum.db"
    left = [database, settings.client_file, settings.data_dir / "secret", settings.data_dir / "lock"]
    for folder in (settings.data_dir, settings.fragments_dir, settings.checkpoints_dir):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    for file in left:
        file.chmod(0o644)
    open_server()
    folders = (settings.data_dir, settings.fragments_dir, settings.checkpoints_dir)
    assert {mode(folder) for folder in folders} == {0o700}
    assert {file.name: mode(file) for file in settings.data_dir.iterdir() if file.is_file()} == {
        file.name: 0o600 for file in settings.data_dir.iterdir() if file.is_file()
    }
    assert f"other accounts could read {database}: its mode is 0600 from now on" in caplog.text


def test_files_in_a_folder_that_nobody_could_enter_are_closed_without_alarm(
    open_server: Open, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    close(open_server())
    (file := settings.data_dir / "local-cluster.json").touch(0o644)
    open_server()
    assert mode(file) == 0o600
    assert "could read" not in caplog.text


def test_a_database_elsewhere_is_closed_to_others_too(settings: Settings, tmp_path: Path) -> None:
    database = tmp_path / "elsewhere.db"
    database.touch(0o644)
    close(OakumServer(settings.model_copy(update={"database_url": f"sqlite:///{database}"})))
    assert mode(database) == 0o600


def test_a_folder_of_others_is_not_closed_to_them_but_refused(settings: Settings) -> None:
    settings.data_dir.mkdir()
    settings.data_dir.chmod(0o755)
    (settings.data_dir / "thesis.tex").touch()
    with pytest.raises(ConfigurationError, match=r"other files than Oakum's: choose an OAKUM_DATA_DIR of its own"):
        OakumServer(settings)
    assert mode(settings.data_dir) == 0o755


def test_what_cannot_be_closed_to_others_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.data_dir.mkdir()
    settings.data_dir.chmod(0o755)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    told = r"other accounts may read .*: Operation not permitted: have its owner \(uid \d+\) run `chmod go= "
    with pytest.raises(ConfigurationError, match=told):
        OakumServer(settings)


@each("size", ["4k", "8k", "32k", "128k", "256k"])
def test_a_start_on_a_full_disk_says_so_and_leaves_nothing(settings: Settings, tmp_path: Path, size: str) -> None:
    disk = tmp_path / f"disk-{size}"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a file system")
    try:
        with pytest.raises(ConfigurationError, match=r"cannot start in .*: (No space|the disk).*free space there"):
            OakumServer(settings.model_copy(update={"data_dir": disk / "data"}))
        assert [*disk.iterdir()] == []
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_the_file_for_the_command_line_opens_the_service_as_its_admin(
    open_server: Open, settings: Settings
) -> None:
    server = open_server()
    client = json.loads(settings.client_file.read_text())
    assert client == {"url": server.url, "token": server.token}
    assert json.loads(settings.service_file.read_text()) == {"url": server.url}
    with server.sessions.begin() as session:
        row = session.get_one(ApiToken, digest(server.token))
    assert (row.name, row.role) == ("local-admin", Role.ADMIN.name.lower())


def test_the_token_and_the_secret_outlive_the_service(open_server: Open, settings: Settings) -> None:
    """So agents and users' shells go on with the tokens that they have."""
    first = open_server()
    token, fragment = first.token, first.context.configs.token("f1")
    close(first)
    second = open_server()
    assert (second.token, second.context.configs.token("f1")) == (token, fragment)


def test_a_token_that_was_revoked_is_replaced(open_server: Open, settings: Settings) -> None:
    first = open_server()
    with first.sessions.begin() as session:
        session.delete(session.get_one(ApiToken, digest(first.token)))
    close(first)
    second = open_server()
    assert second.token != first.token
    with second.sessions.begin() as session:
        assert session.get(ApiToken, digest(second.token)) is not None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": "x"}', b"\xff"])
def test_a_damaged_client_file_is_replaced(open_server: Open, settings: Settings, content: bytes) -> None:
    settings.data_dir.mkdir()
    settings.client_file.write_bytes(content)
    server = open_server()
    assert json.loads(settings.client_file.read_text())["token"] == server.token


def test_a_crash_while_the_secret_is_made_leaves_none_that_can_be_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a crash does, the failing write leaves what is on disk by then."""

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        for name in ("write", "fdopen", "fsync"):
            broken.setattr(os, name, crash)
        with pytest.raises(KeyboardInterrupt):
            _secret(tmp_path / "secret")
    assert len(_secret(tmp_path / "secret")) == 32


def test_a_second_service_is_kept_away_and_told_by_whom(open_server: Open, settings: Settings) -> None:
    server = open_server()
    files = {file: file.read_bytes() for file in (settings.client_file, settings.service_file)}
    with pytest.raises(ConfigurationError) as caught:
        open_server()
    assert str(caught.value) == (
        f"another service (pid {os.getpid()}) already uses {settings.data_dir}: "
        "stop it, or choose another OAKUM_DATA_DIR"
    )
    assert {file: file.read_bytes() for file in files} == files
    close(server)
    open_server()


def test_a_killed_service_keeps_nobody_away(open_server: Open, settings: Settings) -> None:
    code = (
        "import sys, time; from pathlib import Path; from oakum_service.files.data_dir import DataDirLock;"
        "lock = DataDirLock(Path(sys.argv[1]), may_share=False); print('locked', flush=True); time.sleep(60)"
    )
    settings.data_dir.mkdir()
    command = [sys.executable, "-c", code, str(settings.data_dir)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ConfigurationError, match=f"pid {holder.pid}"):
            open_server()
    finally:
        holder.kill()
        holder.wait(10.0)
    open_server()


def test_a_port_that_is_taken_is_named(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}: .*set OAKUM_PORT"):
            OakumServer(settings.model_copy(update={"port": port}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the foreground jobs cannot be read: .*No such file"),
        ("1 2 3\n", "the foreground jobs cannot be read: .*line 1: 3 fields: expected 18"),
        ("; MaxProcs: 4\n", "has no job with a run time and a number of processors: choose another SWF log"),
        ("1 0 0 -1 4 -1 -1 4 9 -1 1 1 1 1 1 1 -1 -1\n", "has no job with a run time"),
    ],
)
def test_a_log_without_jobs_is_refused_before_anything_is_written(
    settings: Settings, tmp_path: Path, content: str | None, message: str
) -> None:
    log = tmp_path / "log.swf"
    if content is not None:
        log.write_text(content)
    local = settings.local.model_copy(update={"swf": log})
    with pytest.raises(ConfigurationError, match=message):
        OakumServer(settings.model_copy(update={"local": local}))
    assert not settings.data_dir.exists()


@each("made", ["in another account's folder", "in a folder of all", "open to others", "a link to a folder of all"])
def test_a_data_directory_of_the_working_folder_that_a_stranger_may_have_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    work, theirs = tmp_path / made / "work", tmp_path / made / "theirs"
    work.mkdir(parents=True)
    theirs.mkdir()
    place = work / ".oakum"
    with monkeypatch.context() as patch:
        if made == "in another account's folder":
            patch.setattr("os.geteuid", lambda: work.stat().st_uid + 1)
            patch.setattr("oakum_service.files.owners.ROOT", -1)
        elif made == "in a folder of all":
            work.chmod(0o777)
        elif made == "open to others":
            place.mkdir()
            place.chmod(0o770)
        else:
            theirs.chmod(0o1777)  # as /tmp
            place.symlink_to(theirs)
        patch.chdir(work)
        patch.delenv("OAKUM_DATA_DIR", raising=False)
        settings = Settings(port=0, local=LocalClusterSettings(nodes=1, load=0))
        with pytest.raises(ConfigurationError, match=r"not yours alone: .*name this one, OAKUM_DATA_DIR=\.oakum"):
            OakumServer(settings)
        with pytest.raises(ConfigurationError, match="not yours alone"):
            print(settings.database)
        # Whoever names one has chosen whose it is.
        named = settings.model_copy(update={"data_dir": Path(".oakum")})
        assert named.database == f"sqlite:///{place.resolve()}/oakum.db"
    assert [*theirs.iterdir()] == []
    assert not place.exists() or [*place.iterdir()] == []


@pytest.mark.parametrize("path", ["file", "file/below", "x" * 300])
def test_a_data_directory_that_cannot_be_one_is_refused(settings: Settings, tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"the data directory .* cannot be used: .*OAKUM_DATA_DIR"):
        OakumServer(settings.model_copy(update={"data_dir": tmp_path / path}))


class TestTheEndOfAServer:
    """A service that stops gives fragments back; a service that fails leaves them to the next start."""

    @pytest.fixture
    def left(self, open_server: Open, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """For each stop, what the scheduler was told about the fragments."""
        told: list[bool] = []
        self.server = open_server()
        stop = self.server.scheduler.stop

        def stop_and_tell(*, leave_fragments: bool = False) -> None:
            told.append(leave_fragments)
            stop(leave_fragments=leave_fragments)

        monkeypatch.setattr(self.server.scheduler, "stop", stop_and_tell)
        return told

    def test_a_controller_that_fails_leaves_its_fragments(
        self, left: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fail() -> None:
            raise RuntimeError("the controller's own")

        monkeypatch.setattr(self.server._controller, "run", fail)
        with pytest.raises(RuntimeError, match="the controller's own"):
            self.server.run()
        assert left == [True]

    def test_a_service_that_is_stopped_does_not(self, left: list[bool]) -> None:
        def interrupt_soon() -> None:
            # Until uvicorn has begun, the signal is asyncio's.
            asyncio.get_running_loop().call_later(0.5, signal.raise_signal, signal.SIGINT)

        self.server.run(interrupt_soon)
        assert left == [False]


def test_specs_whose_trainers_have_ended_are_named_and_not_submitted_again(open_server: Open) -> None:
    server = open_server()
    spec = TrainerSpec(name="digits", entrypoint="a:b", global_batch=8, epochs=1)
    assert submit_once(server, spec) is TrainerState.WAITING
    with server.sessions.begin() as session:
        done = [(each.action, each.subject) for each in session.query(AuditRecord).order_by(AuditRecord.id)]
    assert done == [("token.created", "local-admin"), ("trainer.submitted", "digits")]
    with server.sessions.begin() as session:
        session.query(Trainer).one().state = TrainerState.FINISHED
    ended = submit_once(server, spec)
    assert ended is TrainerState.FINISHED
    paths = [Path("my specs/d.yaml"), Path("e.yaml")]
    assert describe_ended(paths, [spec, spec], [ended, TrainerState.FAILED]) == (
        "  digits is finished already; `oakum submit 'my specs/d.yaml'` starts one anew.\n"
        "  digits is failed already; `oakum submit e.yaml` starts one anew.\n\n"
    )
    assert describe_ended(paths, [spec, spec], [ended, TrainerState.WAITING]) == ""
    assert describe_ended([], [], []) == ""


def test_a_scheduler_that_does_not_exist_is_refused(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match=r"scheduler 'pbs': expected "):
        OakumServer(settings.model_copy(update={"scheduler": "pbs"}))


class TestFragmentTokens:
    """Derived from the service's secret: nothing is stored, and none can be made from another."""

    @pytest.fixture
    def configs(self, settings: Settings) -> FragmentConfigs:
        return FragmentConfigs(settings, b"s" * 32, "http://service.test", grace_s=5.0)

    def test_each_fragment_has_its_own_and_always_the_same(self, configs: FragmentConfigs) -> None:
        tokens = {configs.token(f"f{number}") for number in range(100)}
        assert len(tokens) == 100
        assert configs.token("f1") in tokens

    def test_another_secret_makes_others(self, configs: FragmentConfigs, settings: Settings) -> None:
        other = FragmentConfigs(settings, b"t" * 32, "http://service.test", grace_s=5.0)
        assert other.token("f1") != configs.token("f1")

    def test_a_fragment_is_told_its_own(self, configs: FragmentConfigs, settings: Settings) -> None:
        spec = TrainerSpec(name="digits", entrypoint="a:b", global_batch=8, epochs=1)
        trainer = Trainer(id="t1", name="digits", spec=spec)
        config = configs.make("f1", trainer, "n1", "10.0.0.1")
        assert config.model_dump(exclude={"orphan_timeout_s"}) == {
            "ranks": None,
            "fragment": "f1",
            "trainer": "digits",
            "node": "n1",
            "node_address": "10.0.0.1",
            "service_url": "http://service.test",
            "service_file": str(settings.service_file),
            "service_ca": None,
            "run_as": None,
            "token": configs.token("f1"),
            "spec": spec.model_dump(),
            "checkpoint_dir": str(settings.checkpoints_dir / "t1"),
            "grace_s": 5.0,
            "leave_deadline_s": settings.leave_deadline_s,
            "rank_timeout_s": settings.rank_timeout_s,
        }
