"""What a fragment is given: everything that its agent needs to start."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from oakum_worker.protocol import Message
from oakum_worker.spec import TrainerSpec


class RunAs(Message):
    """How a fragment gets from the service's Unix account into its user's."""

    account: str
    launcher: str
    """Path of the launcher on the nodes, which the service's account may run as root."""


class FragmentConfig(Message):
    """Everything an agent needs to start, written by the service into the fragment's folder (mode 0600)."""

    fragment: str
    trainer: str
    node: str
    node_address: str
    """Address under which the other nodes reach this one."""
    service_url: str
    service_file: str | None = None
    """JSON file `{"url": ...}` to read again when the service does not answer: it may have moved."""
    service_ca: str | None = None
    """Certificates of the authorities to trust, as PEM; default: the system's."""
    token: str
    """Bearer token, valid for this fragment's report and directive alone."""
    run_as: RunAs | None = None
    """None where the code runs in the account that the scheduler starts the fragment in."""
    spec: TrainerSpec
    ranks: Annotated[int, Field(ge=1, le=64)] | None = None
    """How many ranks the fragment has: one for each of its slots. None for a whole node: the spec's
    `ranks_per_node`."""
    checkpoint_dir: str
    leave_deadline_s: float = 1.0
    """Seconds from SIGTERM to the agent's exit while other replicas train on."""
    grace_s: float = 10.0
    """Seconds from SIGTERM after which the scheduler kills the job: the time for the last replica's checkpoint."""
    rank_timeout_s: float = 5.0
    """Seconds without a sign of life and without computing after which the agent kills a rank and restarts it."""
    orphan_timeout_s: float = 120.0
    """Seconds without an answer from the service after which the agent leaves and, as the first member of the
    newest generation, saves a checkpoint."""

    @property
    def num_ranks(self) -> int:
        """How many ranks the fragment has."""
        return self.spec.ranks_per_node if self.ranks is None else self.ranks
