"""A whole cluster: making it, its status, removing it."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

from slurm_cluster import configuration, processes
from slurm_cluster.daemons import START_WITHIN_S, Daemons, answers, check_machine, program
from slurm_cluster.errors import ClusterError
from slurm_cluster.folder import Folder, Record, new_mark
from slurm_cluster.options import ClusterOptions
from slurm_cluster.ports import reserved_ports


class Cluster:
    """The cluster of one folder, whether it runs or not."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)
        self._daemons: Daemons | None = None

    def up(self, options: ClusterOptions) -> bool:
        """Make the cluster and wait until every node is idle; return False if it already runs, which ignores
        `options`.

        Remains of a killed or half-started cluster are removed first. Raises `ClusterError` on failure, after
        which nothing of it runs.
        """
        check_machine()
        self.folder.check()
        with self.folder.locked():
            if self.is_up():
                return False
            self._clear()
            self.folder.path.mkdir(mode=0o755, exist_ok=True)
            self.folder.path.chmod(0o755)
            try:
                self._start(options)
            except BaseException:
                self._clear()
                self.folder.remove()
                raise
        return True

    def down(self) -> bool:
        """End all processes and jobs of the cluster and remove its folder; return False if there was none."""
        if not self.folder.path.exists():
            return False
        self.folder.check()
        with self.folder.locked():
            existed = self.folder.record() is not None
            self._clear()
            self.folder.remove()
        return existed

    def is_up(self) -> bool:
        """Whether every daemon runs, including those of the nodes."""
        record = self.folder.record()
        if record is None:
            return False
        running = Counter(processes.of_mark(record.mark).values())
        singles = Counter(["munged", "mariadbd", "slurmdbd", "slurmctld", "slurmrestd", "slurmrestd"])
        return singles | Counter(slurmd=record.options.nodes) <= running

    def record(self) -> Record:
        """The record with which the cluster was made. Raises `ClusterError` where there is no cluster."""
        record = self.folder.record()
        if record is None:
            raise ClusterError(f"there is no cluster in {self.folder.path}: `make slurm` makes one")
        return record

    def environment(self) -> dict[str, str]:
        """The environment variables by which Slurm's commands find the cluster."""
        return {"SLURM_CONF": str(self.folder.slurm_conf)}

    @property
    def rest_url(self) -> str:
        """URL of the cluster's slurmrestd."""
        return f"http://127.0.0.1:{self.record().slurmrestd_port}"

    @property
    def daemons(self) -> Daemons:
        """The cluster's daemons, for restarting single ones."""
        if self._daemons is None:
            self._daemons = Daemons(self.folder, self.record())
        return self._daemons

    def command(self, *command: str, given: str = "") -> str:
        """Run one of Slurm's commands on the cluster, with the text `given` as its input, and return its output.

        Raises `ClusterError` when it fails.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))}
        try:
            done = subprocess.run(
                [program(command[0]), *command[1:]],
                env=environment | self.environment(),
                input=given,
                capture_output=True,
                text=True,
                timeout=START_WITHIN_S,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"`{' '.join(command)}` does not answer within {START_WITHIN_S:g} s") from error
        if done.returncode != 0:
            raise ClusterError(f"`{' '.join(command)}`: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def node_states(self) -> dict[str, str]:
        """Node -> its state as `sinfo` writes it: `idle`, `allocated`, `idle*` while it does not answer."""
        lines = self.command("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def start_slurmctld(self) -> None:
        """Start the controller and wait until it answers."""
        self.daemons.start_slurmctld()
        self.daemons.wait_for("slurmctld", self.slurmctld_answers)

    def slurmctld_answers(self) -> bool:
        """Whether slurmctld answers."""
        return answers(("127.0.0.1", self.record().slurmctld_port)) and "UP" in self.command("scontrol", "ping")

    def _clear(self) -> None:
        self._daemons = None
        record = self.folder.record()
        if record is not None:
            processes.kill_mark(record.mark)
        # The folder itself stays, because it is the lock.
        self.folder.empty()

    def _start(self, options: ClusterOptions) -> None:
        # Until each daemon listens: a cluster that is made meanwhile must not choose the same ports.
        with reserved_ports(3 + options.nodes) as ports:
            slurmctld, slurmdbd, slurmrestd, *nodes = ports
            self._start_daemons(Record(new_mark(), slurmctld, slurmdbd, slurmrestd, tuple(nodes), options))

    def _start_daemons(self, record: Record) -> None:
        options = record.options
        self.folder.write_record(record)
        configuration.write(self.folder, record)
        daemons = self.daemons
        daemons.start_database_installation()
        daemons.start_munged()
        daemons.finish_database_installation()
        daemons.start_mariadb()
        daemons.start_slurmdbd()
        # Before slurmctld: until it has registered, slurmdbd tells it no changes, and it would not know the QOS to
        # preempt by.
        self.command("sacctmgr", "--immediate", given=configuration.accounting(options))
        daemons.start_slurmctld()
        for node in options.node_names:
            daemons.start_slurmd(node)
        daemons.wait_for("slurmctld", self.slurmctld_answers)
        daemons.start_slurmrestd()
        daemons.wait_for("the nodes", lambda: set(self.node_states().values()) == {"idle"})
