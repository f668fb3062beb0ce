"""The moment between submitit's signal handlers and the agent's own, and what the agent is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fragment_configs import fragment_config
from oakum_worker.fragment import CONFIG_NAME
from oakum_worker.fragment.config_files import FragmentArray, write_config
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
        (False, "n2", "n1 10.0.0.1"),
        (True, "n2", "n2 10.0.0.2"),
        (True, "n1", "n1 10.0.0.1"),
        (True, "n3", "n3 n3"),  # one that joined the partition a moment ago
    ],
)
def test_the_agent_of_an_arrays_task_is_told_the_node_that_the_scheduler_chose(
    tmp_path: Path, array: bool, node: str, told: str
) -> None:
    write_config(tmp_path / "f1", fragment_config(tmp_path))
    array_file = tmp_path / "array.json"
    addresses = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
    array_file.write_text(
        FragmentArray(fragments=("f1", "f2"), addresses=addresses).model_dump_json(), encoding="utf-8"
    )
    arguments = [str(tmp_path / "f1"), *([str(array_file)] if array else [])]
    done = subprocess.run(
        [sys.executable, "-c", _AGENT, *arguments],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
        text=True,
        env=os.environ | {"SLURMD_NODENAME": node},
    )
    assert (done.returncode, done.stderr) == (0, "")
    ranks_waited, *given = done.stdout.splitlines()
    assert given == [told, "True"]
    # Ranks take long to import what they need, and begin before the agent does. An array's config is made first.
    assert ranks_waited == str(array)
    assert (tmp_path / "f1" / CONFIG_NAME).stat().st_mode & 0o777 == 0o600
