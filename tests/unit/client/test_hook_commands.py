"""`oakum hooks`: what it writes, what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
import stat
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_service.db.engine import open_engine, open_readers, upgrade
from oakum_service.db.models.callers import ApiToken
from oakum_service.errors import ConfigurationError
from oakum_service.schedulers.slurm.hooks import trial_job
from oakum_service.schedulers.slurm.hooks.installation import HookInstallation, read_token
from oakum_service.schedulers.slurm.hooks.report import Hook

load_commands()

URL = "http://127.0.0.1:9"
Output = Callable[[], "tuple[str, str]"]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    def read() -> tuple[str, str]:
        out, err = capsys.readouterr()
        return out, err

    return read


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of `oakum hooks install` with the test's own folders, and a token."""
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("oakum_client.cli.hooks._SLURM_CONF", tmp_path / "slurm.conf")
    (tmp_path / "token").write_text("oakum-secret\n", encoding="utf-8")
    return ["--dir", str(tmp_path / "hooks"), "--spool", str(tmp_path / "spool")]


def install(arguments: list[str], *more: str) -> int:
    return run(["hooks", "install", *arguments, "--url", URL, "--slurm-user", "root", *more])


def with_token(tmp_path: Path) -> tuple[str, str]:
    return "--token-file", str(tmp_path / "token")


def test_install_writes_the_hooks_and_prints_the_lines_for_slurm_conf(
    arguments: list[str], tmp_path: Path, output: Output
) -> None:
    assert install(arguments, *with_token(tmp_path)) == 0
    printed, _ = output()
    folder = tmp_path / "hooks"
    for key, hook in (("PrologSlurmctld", "prolog_slurmctld"), ("EpilogSlurmctld", "epilog_slurmctld")):
        assert f"\n  {key}={folder}/{hook}\n" in printed
    assert f"\n  Prolog={folder}/prolog\n  Epilog={folder}/epilog\n" in printed
    assert "\n  PrologEpilogTimeout=30\n" in printed
    assert "Then restart slurmctld" in printed
    assert "The service does not take events now: curl: (7)" in printed
    assert "oakum-secret" not in printed
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    units = {"oakum-hooks-replay.service": 0o644, "oakum-hooks-replay.timer": 0o644}
    assert modes == {**dict.fromkeys([*Hook, "replay"], 0o755), **units, "curl.conf": 0o600}
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spool").iterdir()} == {
        "ctld": 0o700,
        "node": 0o700,
    }


def test_json_says_the_same(arguments: list[str], tmp_path: Path, output: Output) -> None:
    (tmp_path / "slurm.conf").write_text("# ClusterName=no\nclustername = big # yes\n", encoding="utf-8")
    assert install(arguments, *with_token(tmp_path), "--json") == 0
    document = json.loads(output()[0])
    assert document["slurm_conf"][0] == f"PrologSlurmctld={tmp_path}/hooks/prolog_slurmctld"
    assert document["slurm_conf_of_nodes"][1] == f"Epilog={tmp_path}/hooks/epilog"
    assert (document["cluster"], document["url"], document["left_to_do"]) == ("big", URL, [])
    assert document["reached"] is False
    assert "CLUSTER='big'" in (tmp_path / "hooks" / "prolog").read_text("utf-8")


def test_without_a_token_one_is_made_once(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    engine = open_engine(f"sqlite:///{tmp_path / 'data' / 'oakum.db'}")
    upgrade(engine)
    assert install(arguments) == 0
    token = read_token(tmp_path / "hooks" / "curl.conf")
    assert install(arguments) == 0
    assert read_token(tmp_path / "hooks" / "curl.conf") == token
    with open_readers(engine).begin() as session:
        assert [(row.name, row.role) for row in session.query(ApiToken)] == [("slurm-hooks", "hook")]
    engine.dispose()


def test_without_a_token_and_a_database_it_says_how_to_get_one(
    arguments: list[str], tmp_path: Path, output: Output
) -> None:
    assert install(arguments) == 1
    assert "`oakum token create slurm-hooks --role hook` prints one" in output()[1]
    assert not (tmp_path / "hooks").exists()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--spool", "/tmp/a b"), "the folder '/tmp/a b': expected an absolute path of letters"),
        (("--dir", "/tmp/$(reboot)"), "the folder '/tmp/$(reboot)'"),
        (("--url", 'http://h"\nproxy = "x'), "expected one such as http://head:8470"),
        (("--url", "head:8470"), "expected one such as http://head:8470"),
        (("--cluster", "it's"), "expected Slurm's ClusterName"),
        (("--token-file", "/nonexistent"), "--token-file /nonexistent cannot be read"),
        (("--dir", "/proc/oakum"), "choose a --dir and a --spool that this user may write"),
    ],
)
def test_what_cannot_stand_in_a_script_is_refused(
    arguments: list[str], tmp_path: Path, output: Output, more: tuple[str, ...], reason: str
) -> None:
    assert install([*arguments, *with_token(tmp_path)], *more) == 1
    assert reason in output()[1]


def test_a_token_of_other_characters_is_refused(arguments: list[str], tmp_path: Path, output: Output) -> None:
    (tmp_path / "token").write_text('oakum"\nproxy = "x', encoding="utf-8")
    assert install(arguments, *with_token(tmp_path)) == 1
    assert "the token holds characters that no token has" in output()[1]


def test_an_owner_that_is_not_there_is_left_for_the_admin(tmp_path: Path) -> None:
    made = HookInstallation(tmp_path / "hooks", tmp_path / "spool")
    (left,) = made.install(URL, "oakum-secret", owner="no-such-user")
    assert left == f"chown no-such-user: {made.config_file} {made.spool / 'ctld'}"


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oakum_service.schedulers.slurm.hooks.installation._WHERE", str(tmp_path))
    with pytest.raises(ConfigurationError, match="the hooks need curl, timeout, date, mkdir, mv, rm"):
        HookInstallation(tmp_path / "hooks", tmp_path / "spool").install(URL, "oakum-secret", owner=None)


def test_a_second_install_replaces_each_file_at_once(tmp_path: Path) -> None:
    made = HookInstallation(tmp_path / "hooks", tmp_path / "spool")
    made.install(URL, "oakum-one", owner="root")
    files = {file.name: file.open("rb") for file in made.folder.iterdir()}
    before = {name: file.read() for name, file in files.items()}
    made.install(URL, "oakum-two", owner="root")
    for name, file in files.items():
        file.seek(0)
        assert file.read() == before[name]  # whoever reads the old one still has it whole
        file.close()
    assert read_token(made.config_file) == "oakum-two"
    assert {file.name for file in made.folder.iterdir()} == files.keys()


def test_status_counts_what_is_kept(arguments: list[str], tmp_path: Path, output: Output) -> None:
    install(arguments, *with_token(tmp_path))
    (tmp_path / "spool" / "ctld" / "1.json").write_text("{}\n", encoding="utf-8")
    output()
    assert run(["hooks", "status", *arguments, "--json"]) == 1
    document = json.loads(output()[0])
    assert (document["kept"], document["reached"]) == (1, False)
    assert re.match(r"curl: \(7\)", document["error"])


class _Heard(BaseHTTPRequestHandler):
    """A service that takes events, and has heard of any job what `heard` says."""

    heard: ClassVar[dict[str, list[str]]] = {}

    def do_POST(self) -> None:
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        job = self.path.rpartition("/")[2]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"job_id": job, "heard": self.heard if job == "77" else {}}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def service_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Heard)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


_BOTH = {"allocated": ["prolog_slurmctld"], "ended": ["epilog_slurmctld"]}


@each(
    ("srun", "heard", "run_by_slurm", "words"),
    [
        ("echo 77", _BOTH, True, "Slurm runs them: prolog_slurmctld, epilog_slurmctld told of job 77"),
        ("echo 77", {}, False, "Slurm does not run them: none told of job 77. To do: restart slurmctld"),
        ("echo 77", {"ended": ["epilog"]}, False, "epilog told of job 77, and none that it was allocated"),
        ("echo no partition >&2; exit 1", _BOTH, None, "as no job could be run: no partition"),
        ("", _BOTH, None, "no job could be run: srun is not on PATH"),
    ],
)
def test_status_proves_by_a_job_that_slurm_runs_the_hooks(
    arguments: list[str],
    tmp_path: Path,
    output: Output,
    service_url: str,
    monkeypatch: pytest.MonkeyPatch,
    srun: str,
    heard: dict[str, list[str]],
    run_by_slurm: bool | None,
    words: str,
) -> None:
    monkeypatch.setattr(trial_job, "HEARD_WITHIN_S", 0.1)
    monkeypatch.setattr(_Heard, "heard", heard)
    (tmp_path / "bin").mkdir(exist_ok=True)
    command = tmp_path / "bin" / "srun"
    command.unlink(missing_ok=True)
    if srun:
        command.write_text(f"#!/bin/sh\n{srun}\n", encoding="utf-8")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tmp_path / 'tools'}")
    (tmp_path / "tools").mkdir(exist_ok=True)
    (tmp_path / "tools" / "curl").unlink(missing_ok=True)
    (tmp_path / "tools" / "curl").symlink_to("/usr/bin/curl")
    assert run(["hooks", "install", *arguments, "--url", service_url, *with_token(tmp_path)]) == 0
    output()
    assert run(["hooks", "status", *arguments]) == int(run_by_slurm is False)
    assert words in output()[0]
    run(["hooks", "status", *arguments, "--json"])
    assert json.loads(output()[0])["run_by_slurm"] is run_by_slurm
    run(["hooks", "status", *arguments, "--no-job"])
    assert "The hooks:" not in output()[0]


def test_uninstall_refuses_while_slurm_conf_names_the_hooks(
    arguments: list[str], tmp_path: Path, output: Output
) -> None:
    install(arguments, *with_token(tmp_path))
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"PrologSlurmctld = {tmp_path}/hooks/prolog_slurmctld\n", encoding="utf-8")
    assert run(["hooks", "uninstall", *arguments, "--slurm-conf", str(conf)]) == 1
    assert f"PrologSlurmctld = {tmp_path}/hooks/prolog_slurmctld" in output()[1]
    assert (tmp_path / "hooks" / "prolog_slurmctld").exists()
    conf.write_text(f"#PrologSlurmctld={tmp_path}/hooks/prolog_slurmctld\n", encoding="utf-8")
    assert run(["hooks", "uninstall", *arguments, "--slurm-conf", str(conf)]) == 0
    assert not (tmp_path / "hooks").exists()
    assert not (tmp_path / "spool").exists()


def test_uninstall_leaves_what_was_never_sent_and_what_is_not_ours(
    arguments: list[str], tmp_path: Path, output: Output
) -> None:
    install(arguments, *with_token(tmp_path))
    (tmp_path / "spool" / "ctld" / "1.json").write_text("{}\n", encoding="utf-8")
    (tmp_path / "hooks" / "theirs").touch()
    assert run(["hooks", "uninstall", *arguments]) == 0
    assert "1 unsent event left" in output()[0]
    assert [file.name for file in (tmp_path / "hooks").iterdir()] == ["theirs"]
    assert (tmp_path / "spool" / "ctld" / "1.json").exists()


@pytest.mark.parametrize("command", ["install", "status", "uninstall"])
def test_help_shows_an_example(command: str, output: Output) -> None:
    assert run(["hooks", command, "--help"]) == 0
    assert f"oakum hooks {command} --dir /etc/slurm/oakum" in output()[0]
