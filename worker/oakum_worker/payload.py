"""Entry points of a fragment's process: `run_fragment` for submitit, `main` for a fork server, and the module
itself for the launcher that has entered the user's account.

submitit makes the process ignore SIGTERM and requeue its job on SIGUSR2, then imports this module. A scheduler
that takes the node back may signal only once, so `run_fragment` handles both signals before it imports anything.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from oakum_worker.fragment.forking import ForkServer


def main(folder: str) -> None:
    """Run the agent of the fragment whose config is in `folder`, in a process forked from a fork server. Ends the
    process."""
    from oakum_worker.fragment.fork_server import own_server

    run_fragment(folder, server=own_server(folder))


def run_fragment(folder: str, array_file: str | None = None, server: ForkServer | None = None) -> None:
    """Run the agent of the fragment whose config is in `folder`, then end the process.

    Ranks are forked from the `server`, or started afresh without one. An `array_file` is given where the scheduler
    has chosen the node, which is first written into the config.
    """
    # Before the agent exists there is nothing to leave in order: a signal ends the process at once.
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: os._exit(0))
    from pathlib import Path

    from oakum_worker.fragment import CONFIG_NAME
    from oakum_worker.fragment.other_account import enter_account
    from oakum_worker.fragment.rank_starter import start_ranks

    config_file = Path(folder) / CONFIG_NAME
    if array_file is not None:
        _settle_down(config_file, Path(array_file))  # before the ranks start, because they read the config, too
    enter_account(config_file)
    # Ranks start while the agent's own imports below run.
    ranks = start_ranks(config_file, server)
    import logging

    from oakum_worker.fragment.agent import Agent
    from oakum_worker.fragment.config_files import read_config

    Agent(read_config(config_file), ranks).run()
    # End here: submitit would pickle a result that nobody reads, and keep the node longer.
    logging.shutdown()
    os._exit(0)


def run_handed_fragment() -> None:
    """Run the fragment that `enter_account` has handed over, in its user's account. Ends the process."""
    import sys
    from pathlib import Path

    from oakum_worker.checkpoint.in_account import ACCOUNT_FOLDER
    from oakum_worker.fragment.other_account import receive

    folder = receive(sys.stdin.buffer, Path(os.environ.pop(ACCOUNT_FOLDER)))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    run_fragment(str(folder))


def _settle_down(config_file: Path, array_file: Path) -> None:
    """For a task of a job array: write the node on which the scheduler has started it, and the node's address,
    into the fragment's config."""
    from oakum_worker.fragment.config_files import FragmentArray, read_config, write_config

    array = FragmentArray.model_validate_json(array_file.read_text(encoding="utf-8"))
    node = os.environ[array.node_variable]
    config = read_config(config_file)
    placed = config.model_copy(update={"node": node, "node_address": array.addresses.get(node, node)})
    write_config(config_file.parent, placed)


if __name__ == "__main__":
    run_handed_fragment()
