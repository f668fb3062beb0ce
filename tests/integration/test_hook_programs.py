"""The hook scripts themselves: the programs that they call, their limits, and what they take for an event."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hook_scripts import HOSTILE, TOKEN, Hooks
from hook_scripts import hooks as hooks
from hook_scripts import job as job
from oakum_service.schedulers.slurm.hooks.report import Hook


def test_without_curl_the_event_is_kept(hooks: Hooks, job: int) -> None:
    hooks.change(Hook.PROLOG, "^CURL=.*", "CURL='/nonexistent/curl'")
    hooks.run(Hook.PROLOG, job)
    assert len(hooks.kept()) == 1


@pytest.mark.parametrize("program", ["TIMEOUT", "DATE", "MV", "RM", "MKDIR", "LOGGER"])
def test_without_a_program_the_hook_still_leaves_with_0(hooks: Hooks, job: int, program: str) -> None:
    for hook in (Hook.PROLOG, Hook.EPILOG_SLURMCTLD):
        hooks.change(hook, f"^{program}=.*", f"{program}='/nonexistent/program'")
        hooks.run(hook, job)
    assert len(hooks.kept()) == (0 if program == "MV" else 2)


def test_a_curl_that_never_ends_is_ended(hooks: Hooks, tmp_path: Path, job: int) -> None:
    curl = tmp_path / "curl"
    curl.write_text("#!/bin/sh\ntrap '' TERM\nexec /bin/sleep 60\n", encoding="utf-8")
    curl.chmod(0o755)
    hooks.change(Hook.PROLOG, "^CURL=.*", f"CURL='{curl}'")
    hooks.run(Hook.PROLOG, job)
    assert len(hooks.kept()) == 1


def test_curl_is_given_its_limits_and_the_token_only_in_a_file(hooks: Hooks, tmp_path: Path, job: int) -> None:
    curl, asked = tmp_path / "curl", tmp_path / "asked"
    curl.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >>{asked}\nprintf 204\n", encoding="utf-8")
    curl.chmod(0o755)
    hooks.run(Hook.PROLOG, job)
    hooks.change(Hook.PROLOG, "^CURL=.*", f"CURL='{curl}'")
    hooks.run(Hook.PROLOG, job, SLURMD_NODENAME="n2")
    first, second = asked.read_text("utf-8").split("-q\n")[1:]
    for arguments, limit in ((first, "1.2"), (second, "0.4")):
        assert f"--max-time\n{limit}\n" in arguments
        assert f"--connect-timeout\n{limit}\n" in arguments
        assert f"--config\n{hooks.made.config_file}\n" in arguments
        assert TOKEN not in arguments
    assert hooks.made.config_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("hook", Hook)
def test_the_script_itself_allows_for_no_more_than_2_seconds(hooks: Hooks, hook: Hook) -> None:
    text = (hooks.made.folder / hook).read_text("utf-8")
    guards_s = [float(value) for value in re.findall(r"^(?:KEPT_)?GUARD_S=(.*)$", text, re.MULTILINE)]
    limits_s = [float(value) for value in re.findall(r"^(?:KEPT_)?LIMIT_S=(.*)$", text, re.MULTILINE)]
    assert (len(guards_s), len(limits_s)) == (2, 2)
    assert sum(guards_s) <= 1.8
    assert all(limit_s < guard_s for limit_s, guard_s in zip(limits_s, guards_s, strict=True))


def test_a_hook_sends_what_is_kept_in_one_place_and_leaves_the_other_to_the_next(
    hooks: Hooks, tmp_path: Path, job: int
) -> None:
    """The 2 seconds have room for two requests that take their whole limit."""
    curl, asked = tmp_path / "curl", tmp_path / "asked"
    curl.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >>{asked}\nprintf 204\n", encoding="utf-8")
    curl.chmod(0o755)
    memory = Path(f"{hooks.made.fallback}-node")
    memory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (memory, hooks.made.spool / "node"):
        (folder / "100000.json").write_text("{}\n", encoding="utf-8")
    hooks.change(Hook.PROLOG, "^CURL=.*", f"CURL='{curl}'")
    left = []
    for _ in range(2):
        hooks.run(Hook.PROLOG, job)
        left.append((asked.read_text("utf-8").count("-q\n"), len(hooks.kept())))
    assert left == [(2, 1), (4, 0)]


def test_a_job_id_or_a_node_that_is_none_is_no_event(hooks: Hooks) -> None:
    for value in HOSTILE:
        hooks.run(Hook.PROLOG_SLURMCTLD, SLURM_JOB_ID=value)
    for value in ('"', "../n1", "a\nb", "$(touch hit)"):
        hooks.run(Hook.PROLOG, SLURMD_NODENAME=value)
    assert hooks.kept() == []


def test_a_folder_that_somebody_else_put_in_memory_is_not_used(hooks: Hooks, tmp_path: Path, job: int) -> None:
    shutil.rmtree(hooks.made.spool)
    hooks.made.spool.touch()
    (tmp_path / "theirs").mkdir()
    Path(f"{hooks.made.fallback}-node").symlink_to(tmp_path / "theirs")
    hooks.run(Hook.PROLOG, job)
    assert list((tmp_path / "theirs").iterdir()) == []


def test_the_spool_keeps_the_newest(hooks: Hooks, job: int) -> None:
    hooks.change(Hook.PROLOG, "^MOST_KEPT=.*", "MOST_KEPT=4")
    for number in range(4):
        (hooks.made.spool / "node" / f"10000{number}.json").write_text("{}\n", encoding="utf-8")
    for number in range(6):
        hooks.run(Hook.PROLOG, job, SLURMD_NODENAME=f"n{number}")
    assert len(hooks.kept()) <= 4
    assert not any(name.startswith("1000") for name in hooks.kept())


@pytest.mark.parametrize("name", [*Hook, "replay"])
def test_the_scripts_are_plain_sh(hooks: Hooks, name: str) -> None:
    script = hooks.made.folder / name
    assert re.findall(r"@[A-Z_]+@", script.read_text("utf-8")) == []
    for shell in ("dash", "bash --posix", "busybox sh"):
        if shutil.which(shell.split()[0]):
            subprocess.run([*shell.split(), "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-s", "sh", script], capture_output=True, text=True, check=False)
        assert done.stdout == ""
