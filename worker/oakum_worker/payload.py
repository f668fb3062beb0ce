"""What submitit calls in a fragment's process.

submitit makes that process ignore SIGTERM and requeue its job on SIGUSR2, then imports this module. A scheduler
that takes the node back may signal only once, so nothing is imported here before both mean what they should.
"""

from __future__ import annotations

import os
import signal


def run_fragment(folder: str, array_file: str | None = None) -> None:
    """The payload: be the agent of the fragment whose config lies in `folder`.

    With an `array_file` the scheduler chose the node, and the config is made to say which.
    """
    # Until the agent stands there is nothing to take leave of.
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: os._exit(0))
    import logging
    from pathlib import Path

    from oakum_worker.agent import Agent
    from oakum_worker.launch import CONFIG_NAME, FragmentArray, write_config
    from oakum_worker.protocol import FragmentConfig

    config_file = Path(folder) / CONFIG_NAME
    config = FragmentConfig.model_validate_json(config_file.read_text(encoding="utf-8"))
    if array_file is not None:
        addresses = FragmentArray.model_validate_json(Path(array_file).read_text(encoding="utf-8")).addresses
        node = os.environ["SLURMD_NODENAME"]
        config = config.model_copy(update={"node": node, "node_address": addresses.get(node, node)})
        write_config(Path(folder), config)  # the ranks read it, too
    Agent(config, config_file).run()
    # The node is wanted back: submitit's pickling of a result that nobody reads would only keep it longer.
    logging.shutdown()
    os._exit(0)
