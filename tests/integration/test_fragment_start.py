"""The moment between submitit's signal handlers and the agent's own, and what the agent is told."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cells import each
from fragment_configs import fragment_config
from oakum_client.cli import trying
from oakum_service.schedulers.slurm.sbatch import SlurmJobOptions, submit_slurm
from oakum_service.schedulers.starting import FragmentStarter
from oakum_worker.fragment import CONFIG_NAME
from oakum_worker.fragment.config_files import FragmentArray, write_config
from oakum_worker.fragment.rank_starter import RankStarter
from oakum_worker.fragment_config import RunAs
from oakum_worker.launch import submit_local
from waiting import DEADLINE_S

# Stands in for an agent module that takes long to import, during which the scheduler wants the node back.
_SCRIPT = """
import os, signal, sys, types

number = signal.Signals[sys.argv[1]]

class Importing(types.ModuleType):
    def __getattr__(self, name):
        os.kill(os.getpid(), number)
        return lambda *arguments: sys.exit("the agent was started all the same")

signal.signal(number, signal.SIG_IGN)
before = set(sys.modules)
from oakum_worker.payload import run_fragment
print(*sorted(set(sys.modules) - before - {"__future__"}), flush=True)
sys.modules["oakum_worker.fragment.rank_starter"] = ranks = types.ModuleType("oakum_worker.fragment.rank_starter")
ranks.start_ranks = lambda *given: []
sys.modules["oakum_worker.fragment.agent"] = Importing("oakum_worker.fragment.agent")
run_fragment(sys.argv[2])
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR2"])
def test_a_fragment_that_is_told_to_go_while_it_imports_goes_at_once(name: str, tmp_path: Path) -> None:
    """Next to nothing is imported before the fragment can handle the signal."""
    write_config(tmp_path, fragment_config(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, name, str(tmp_path)],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["oakum_worker", "oakum_worker.payload"]


# Stands in for the agent and its ranks: shows what both were given, and what was imported when the ranks began.
_AGENT = """
import sys, types

def start_ranks(file, server):
    print("pydantic" in sys.modules)
    return [file]

class Agent:
    def __init__(self, config, ranks):
        print(config.node, config.node_address)
        print(type(config).model_validate_json(ranks[0].read_text()) == config)
    def run(self):
        sys.stdout.flush()

for name, member in (("rank_starter", start_ranks), ("agent", Agent)):
    module = types.ModuleType("oakum_worker.fragment." + name)
    setattr(module, member.__name__, member)
    sys.modules[module.__name__] = module
from oakum_worker.payload import run_fragment
run_fragment(*sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("array", "node", "told"),
    [
        ({}, {"SLURMD_NODENAME": "n2"}, "n2 10.0.0.2"),
        ({}, {"SLURMD_NODENAME": "n1"}, "n1 10.0.0.1"),
        ({}, {"SLURMD_NODENAME": "n3"}, "n3 n3"),  # one that joined the partition a moment ago
        ({"node_variable": "OTHER_HOST"}, {"OTHER_HOST": "n2"}, "n2 10.0.0.2"),  # another scheduler than Slurm
        (None, {"SLURMD_NODENAME": "n2"}, "n1 10.0.0.1"),
    ],
)
def test_the_agent_of_an_arrays_task_is_told_the_node_that_the_scheduler_chose(
    tmp_path: Path, array: dict[str, str] | None, node: dict[str, str], told: str
) -> None:
    write_config(tmp_path / "f1", fragment_config(tmp_path))
    array_file = tmp_path / "array.json"
    addresses = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
    written = FragmentArray(fragments=("f1", "f2"), addresses=addresses, **(array or {}))
    array_file.write_text(written.model_dump_json(), encoding="utf-8")
    arguments = [str(tmp_path / "f1"), *([] if array is None else [str(array_file)])]
    done = subprocess.run(
        [sys.executable, "-c", _AGENT, *arguments],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
        text=True,
        env=os.environ | node,
    )
    assert (done.returncode, done.stderr) == (0, "")
    ranks_waited, *given = done.stdout.splitlines()
    assert given == [told, "True"]
    # Ranks take long to import what they need, and begin before the agent does. An array's config is made first.
    assert ranks_waited == str(array is not None)
    assert (tmp_path / "f1" / CONFIG_NAME).stat().st_mode & 0o777 == 0o600


_ENTERING = """
import sys
from pathlib import Path
from oakum_worker.fragment import other_account
other_account._MOST_BYTES = 1000
other_account.enter_account(Path(sys.argv[1]))
print("not reached")
"""
_SUDO = """#!/bin/sh
printf '%s\\n' "$*" > {folder}/words
cat > {folder}/given
trap 'echo told to go' TERM
echo begun
{then}
"""


def entering(folder: Path, then: str) -> subprocess.Popen[bytes]:
    """A process that enters an account by a `sudo` that does what `then` says."""
    (folder / "sudo").write_text(_SUDO.format(folder=folder, then=then), encoding="utf-8")
    (folder / "sudo").chmod(0o700)
    config = fragment_config(folder).model_copy(update={"run_as": RunAs(account="alice", launcher="/run-as")})
    return subprocess.Popen(
        [sys.executable, "-c", _ENTERING, str(write_config(folder / "f1", config))],
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "FOR_THE_TRAINER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def test_a_log_takes_so_much_whatever_a_user_writes_in_the_agents_place(tmp_path: Path) -> None:
    with entering(
        tmp_path, "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo its last words; exit 3"
    ) as process:
        told, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 3
    assert told.startswith(b"begun\nxxx")
    assert told.endswith(b"xxx\nits last words\n")
    assert len(told) < 200_000
    assert (tmp_path / "words").read_text(encoding="utf-8") == "-n -- /run-as fragment --account alice\n"
    given = json.loads((tmp_path / "given").read_text(encoding="utf-8"))
    assert given["config"]["token"] == "a secret"
    assert given["environment"]["FOR_THE_TRAINER"] == "1"


def test_who_hands_a_log_on_goes_when_the_fragment_goes(tmp_path: Path) -> None:
    """The scheduler signals every process of the job; the agent may save a checkpoint first."""
    with entering(tmp_path, f"until [ -e {tmp_path}/gone ]; do :; done; exit 0") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            os.killpg(process.pid, signal.SIGTERM)
            assert process.stdout.readline() == b"told to go\n"
            assert process.poll() is None
        finally:
            (tmp_path / "gone").touch()
        assert process.wait(DEADLINE_S) == 0


def plant(folder: Path) -> Path:
    """Modules in the folder, under the names of those that fragments import, and the file into which each writes
    that it was imported. Returns the file."""
    folder.mkdir()
    told = folder.parent / "imported"
    for name in ("submitit", "oakum_worker", "oakum_service", "json", "random", "torch"):
        (folder / f"{name}.py").write_text(f"open({str(told)!r}, 'a').write({name!r})\n", encoding="utf-8")
    return told


def start_as_slurm_does(folder: Path) -> None:
    """Run what a fragment's job runs on its node; the fragment's config is gone, which ends it."""
    sbatch, script = folder / "sbatch", folder / "script"
    sbatch.write_text(f'#!/bin/sh\ncp "$2" {script}\necho 7\n', encoding="utf-8")
    sbatch.chmod(0o700)
    options = SlurmJobOptions("oakum-test", "main", 5, 10, sbatch=(str(sbatch),))
    submit_slurm(folder / "f1", fragment_config(folder), options)
    (folder / "f1" / CONFIG_NAME).unlink()
    (line,) = (each for each in script.read_text(encoding="utf-8").splitlines() if each.startswith("srun "))
    words = shlex.split(line)
    numbers = {f"SLURM_{name}": "0" for name in ("PROCID", "LOCALID", "NODEID")}
    job = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", **numbers}
    command = words[words.index(sys.executable) :]
    done = subprocess.run(
        command, env=os.environ | job, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert CONFIG_NAME in done.stderr + done.stdout, done


def start_a_rank(folder: Path) -> None:
    starter = RankStarter(folder / "missing.json", 0, 1)
    started = starter.start()
    assert started.process.wait(DEADLINE_S) != 0
    os.close(started.news)


def start_a_fork_server(folder: Path) -> None:
    starter = FragmentStarter(folder / "fragments", forks=True)
    starter.open()
    starter.prepare()
    starter.close()


def start_a_try(folder: Path) -> None:
    process = trying._start_worker(["--help"])
    assert process.wait(DEADLINE_S) == 0
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def start_without_a_fork_server(folder: Path) -> None:
    """As the embedded cluster does where nothing can be forked; the fragment's config is gone, which ends it."""
    controller = submit_local(folder / "f1", fragment_config(folder))
    (folder / "f1" / CONFIG_NAME).unlink()
    with suppress(psutil.NoSuchProcess):
        psutil.Process(controller).wait(DEADLINE_S)


@each(
    "start",
    [start_as_slurm_does, start_without_a_fork_server, start_a_rank, start_a_fork_server, start_a_try],
    ids=lambda one: one.__name__,
)
def test_nothing_is_imported_from_the_folder_that_a_process_begins_in(
    start: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm begins a job in /tmp where its node does not have the service's folder, and anybody writes there."""
    own = tmp_path / start.__name__
    own.mkdir()
    told = plant(own / "planted")
    monkeypatch.chdir(own / "planted")
    start(own)
    assert not told.exists(), told.read_text(encoding="utf-8")


def test_every_interpreter_is_started_without_its_folder_as_a_place_for_modules() -> None:
    """Those of which no process is started above, too."""
    root = Path(__file__).resolve().parents[2]
    started = re.compile(r"\[\s*(?:[^\]\[]*,\s*)?sys\.executable,\s*\"([^\"]+)\"")
    first = {
        f"{file.relative_to(root)}: {option}"
        for package in ("service", "worker", "solver", "client")
        for file in (root / package).rglob("*.py")
        for option in started.findall(file.read_text(encoding="utf-8"))
    }
    assert len(first) >= 5
    assert [each for each in first if not each.endswith(": -P")] == []
