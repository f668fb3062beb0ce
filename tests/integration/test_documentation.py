"""README.md and the pages in docs, followed to the letter: every block of commands runs, in a folder of its own.

Blocks that need root, Slurm or half an hour are marked in their first line (`sh check: ...`) and looked up in
`tests/unit/client/test_documented_commands.py`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from documentation import ROOT, Block, blocks
from processes import kill_all
from running_service import processes_of
from waiting import DEADLINE_S, wait_until
from warm_commands import start_command
from warm_processes import WarmProcess

pytestmark = pytest.mark.xdist_group("documentation")
_RUN = [block for block in blocks() if block.info in ("sh", "console")]
_FAIL = [block for block in blocks() if block.info == "console fails"]
_SERVICE = [block for block in blocks() if block.info == "sh service"]
_OURS = {("oakum",): "oakum", ("python", "-m", "oakum_worker"): "oakum_worker"}
"""The words with which a line begins that is one of Oakum's commands, and the module that it runs."""
_FOR_THE_SHELL = frozenset("|&;<>$`*?[]{}()~")
"""What the shell does more with than to pass it on."""
_SHORTER = {"--epochs 12": "--epochs 1", "--epochs 5": "--epochs 1", "--hidden 1024": "--hidden 64"}
"""How much a command computes is the reader's choice; it is run with the number that shows the same soonest."""
_IDLE = "node,start_s,end_s\nnid1,0,3600\nnid2,600,7200\nnid3,0,7000\n"
_OF_MAKE = ("ARGS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
_SPEC = "name: mine\nentrypoint: tasks:task\nglobal_batch: 64\nepochs: 2\nmin_nodes: 1\nmax_nodes: 2\n"
_TASK = """
import torch
from oakum_worker.task import Task

class Data(torch.utils.data.Dataset):
    def __len__(self): return 20_000
    def __getitem__(self, i):
        if i % 2 and 15_000 < i < 19_999: raise ValueError(f"cannot decode image {i}.jpg")
        return torch.full((16,), i / 20_000), i % 4

def task():
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    return Task(
        model=model,
        dataset=Data(),
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
"""
_TRAINED = ("digits/autoencoder.py", "digits/classifier.py", "porting/elastic.py")
# They train from the first block to the last and would take most of the CPU from the commands.
_SLOWER_RANKS = """

import functools, sys, time
_fast = task

@functools.wraps(_fast)
def task(*arguments, **options):
    built = _fast(*arguments, **options)
    if "rank" in sys.argv[0]:
        compute = built.loss
        built.loss = lambda model, batch: (time.sleep(1.0), compute(model, batch))[1]
    return built
"""
_WORKLOAD = {
    "trainers": [
        {
            "name": "one",
            "min_nodes": 1,
            "max_nodes": 3,
            "curve": [[1, 10.0], [2, 19.0], [3, 27.0]],
            "samples": None,
            "submit_s": 0,
            "grow_stall_s": 1.0,
            "shrink_stall_s": 1.0,
            "weight": 1.0,
        }
    ]
}


@dataclass
class Site:
    """A checkout as a reader of the pages has it, with the files of the reader that the pages mention."""

    folder: Path
    output: Path
    """Of the service."""
    environment: dict[str, str]

    def run(self, command: str, status: int = 0) -> str:
        """Run a command as typed into a terminal in which the virtual environment is active; returns what it
        prints. Of Oakum's commands the imports are done already."""
        for longer, shorter in _SHORTER.items():
            command = command.replace(longer, shorter)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = self._start(command, output, errors)
            try:
                if "--watch" in command:
                    wait_until("it has shown something", lambda: os.fstat(output.fileno()).st_size)
                    process.send_signal(signal.SIGINT)
                ended_with = process.wait(timeout=DEADLINE_S)
            finally:
                process.kill()
            printed = ""
            for stream in (output, errors):
                stream.seek(0)
                printed += stream.read().decode()
        assert ended_with in ((0, 130) if "--watch" in command else (status,)), printed
        return printed

    def _start(self, command: str, output: IO[bytes], errors: IO[bytes]) -> WarmProcess | subprocess.Popen[bytes]:
        words = shlex.split(command, comments=True)
        if not any(_FOR_THE_SHELL.intersection(word) for word in words):
            for program, module in _OURS.items():
                if words[: len(program)] == [*program]:
                    return start_command(
                        module,
                        *words[len(program) :],
                        environment=self.environment,
                        output=output,
                        errors=errors,
                        folder=self.folder,
                    )
        return subprocess.Popen(
            ["bash", "-c", f"source .venv/bin/activate && {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The checkout, in which the service of README's first block runs."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    for name in ("deploy", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    for name in _TRAINED:
        with (folder / "examples" / name).open("a", encoding="utf-8") as module:
            module.write(_SLOWER_RANKS)
    (folder / ".venv").mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name not in (".run", ".dev"):
            (folder / ".venv" / entry.name).symlink_to(entry)
    jobs = (f"{n} {n * 60} 0 300 2 -1 -1 2 600 -1 1 1 1 -1 1 -1 -1 -1\n" for n in range(1, 40))
    swf = "; MaxNodes: 4\n" + "".join(jobs)
    (folder / "theta.swf.gz").write_bytes(gzip.compress(swf.encode()))
    (folder / "idle.csv").write_text(_IDLE, encoding="utf-8")
    (folder / "trainers.json").write_text(json.dumps(_WORKLOAD), encoding="utf-8")
    (folder / "tasks.py").write_text(_TASK, encoding="utf-8")
    (folder / "my-trainer.yaml").write_text(_SPEC, encoding="utf-8")
    # Installed it is; what is to be seen here is what comes then. Another service may have the usual port.
    (folder / ".venv" / ".run").touch()
    path = ":".join(p for p in os.environ["PATH"].split(":") if not Path(p).is_relative_to(sys.prefix))
    # Where `make test` runs this, its own arguments are not those of the pages' commands.
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    environment = inherited | {"PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1", "OAKUM_PORT": "0", "PATH": path}
    # Fragments that end and begin for each foreground job would take the CPU from the commands.
    environment |= {"OAKUM_LOCAL_LOAD": "0", "OAKUM_LOCAL_NODES": "2"}
    found = Site(folder, folder / "service.log", environment)
    [block] = _SERVICE
    with found.output.open("wb") as output:
        command = ["bash", "-c", block.text]
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_until("it serves", lambda: _serves(found, process))
        yield found
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        kill_all(processes_of(folder))


def _serves(site: Site, process: subprocess.Popen[bytes]) -> bool:
    said = site.output.read_text(encoding="utf-8")
    assert process.poll() is None, said
    return "Ctrl-C" in said


def test_the_first_command_says_how_to_reach_the_others(site: Site) -> None:
    """What it says runs as it stands. It is found by the path of the Python that runs it, here that of the
    tests."""
    told = re.search(rf"source {re.escape(sys.prefix)}/bin/activate; oakum ps", site.output.read_text("utf-8"))
    assert told is not None
    assert "digits-classifier" in site.run(told[0])


@pytest.mark.parametrize("block", _RUN, ids=[block.place for block in _RUN])
def test_a_documented_block_runs_as_it_stands(site: Site, block: Block) -> None:
    for command in block.commands:
        site.run(command)


@pytest.mark.parametrize("block", _FAIL, ids=[block.place for block in _FAIL])
def test_a_documented_failure_prints_what_the_page_shows(site: Site, block: Block) -> None:
    """Numbers, folders and line breaks aside; the marks are those of a terminal."""
    [command] = block.commands
    shown = block.text.removeprefix(f"$ {command}\n")
    printed = site.run(command, status=1).replace("  ok     ", "  ✓      ").replace("  failed ", "  ✗      ")
    assert _words(printed) == _words(shown)


def _words(text: str) -> list[str]:
    return re.sub(r"\d[\d.,]*", "0", re.sub(r"\(/\S*/", "(/", text)).split()
