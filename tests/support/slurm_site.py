"""A real Slurm cluster for tests: made, used, broken and taken away.

    site = SlurmSite.make(nodes=2, grace_s=2)      its own folder, made by this
    site.environment                               {"SLURM_CONF": ...}: merge it into a process's environment
    site.run("squeue", "--json")                   what a command prints; `user="nobody"` runs it as another
    site.submit_foreground(nodes=6, run_s=3)       job id, in `main`, whole nodes
    site.occupy(2)                                 job id; it runs, and keeps its nodes until it is cancelled
    site.submit("fill", "sleep 60", nodes=1)       job id; the command runs as a step, as fragments do
    site.jobs(), site.sacct()                      what squeue and sacct say
    site.wait_for_state(job, "RUNNING")
    site.set_node("n001", "DOWN"), site.set_grace(5), site.cancel_all(), site.clean()
    site.kill("slurmctld"), site.restart_slurmctld(), site.restart_slurmdbd()
    site.jwt("root"), site.rest_url, site.rest_socket
    site.down()

The fixture `slurm` (tests/slurm/conftest.py) is one such cluster of eight nodes for all tests of a worker.
"""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from abandoned_runs import abandoned_folders, make_folder
from slurm_cluster import processes
from slurm_cluster.cluster import Cluster
from slurm_cluster.daemons import program
from slurm_cluster.options import ClusterOptions
from waiting import DEADLINE_S, T
from waiting import wait_until as wait_closely

ENDED = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}
_PREFIX = "oakum-slurm-"
_DAEMONS = {"munged", "mariadbd", "slurmdbd", "slurmctld", "slurmscriptd", "slurmd", "slurmrestd"}
_STRAYS_END_WITHIN_S = 5.0
_BETWEEN_LOOKS_S = 0.3


def wait_until(
    what: str,
    probe: Callable[[], T | None],
    timeout_s: float = DEADLINE_S,
    now: Callable[[], object] = lambda: "",
) -> T:
    """Wait as `waiting.wait_until` does, with fewer looks: each takes Slurm or the service some CPU time, and what
    is waited for on Slurm takes seconds."""

    def look() -> T | None:
        if not (found := probe()):
            time.sleep(_BETWEEN_LOOKS_S)
        return found

    return wait_closely(what, look, timeout_s, now)


@dataclass(frozen=True)
class Job:
    """A line of `squeue`."""

    id: str
    name: str
    partition: str
    state: str
    nodes: str
    """Folded; empty while it is pending."""
    user: str


@dataclass(frozen=True)
class Accounted:
    """A line of `sacct`: one job, not its steps. Times are Unix seconds, None where Slurm has none."""

    id: str
    name: str
    partition: str
    qos: str
    submit: float | None
    eligible: float | None
    start: float | None
    end: float | None
    state: str
    """The first word of it: `CANCELLED`, not `CANCELLED by 0`."""
    nodes: str
    user: str


class SlurmSite:
    """One cluster; see the module's docstring."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder)

    @classmethod
    def make(cls, **options: Any) -> SlurmSite:
        """A new cluster in a new folder; `options` are those of `ClusterOptions`."""
        _remove_abandoned()
        # Not tmp_path: that is closed to other users, and too long a path for unix sockets.
        site = cls(make_folder(_PREFIX))
        site.up(**options)
        return site

    def up(self, **options: Any) -> None:
        """Bring it up."""
        assert self.cluster.up(ClusterOptions(**options)), f"a cluster runs in {self.folder} already"

    def down(self) -> None:
        """Take it away, folder included."""
        self.cluster.down()

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which Slurm's commands, and so Oakum, find it."""
        return self.cluster.environment()

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the whole cluster."""
        return self.cluster.record().options.nodes

    @property
    def rest_url(self) -> str:
        """URL of slurmrestd; callers need a JWT."""
        return self.cluster.rest_url

    @property
    def rest_socket(self) -> Path:
        """Unix socket of slurmrestd; its callers act as slurmrestd's account, which is neither root nor
        SlurmUser."""
        return self.cluster.folder.rest_socket

    def run(
        self, *command: str, user: str | None = None, given: str | None = None, timeout_s: float = DEADLINE_S
    ) -> str:
        """Run a command on the cluster as `user` and return its output. Raises `AssertionError` if it fails."""
        done = self.attempt(*command, user=user, given=given, timeout_s=timeout_s)
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def attempt(
        self, *command: str, user: str | None = None, given: str | None = None, timeout_s: float = DEADLINE_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as `run` does, but return the completed process, whatever its exit status."""
        account = pwd.getpwnam(user) if user else None
        return subprocess.run(
            [program(command[0]), *command[1:]],
            env=self._variables(),
            cwd="/" if account else None,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            input=given or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def _variables(self) -> Mapping[str, str]:
        # A test of the REST interface sets SLURM_JWT, with which Slurm's commands would want no munge.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return kept | self.environment

    def submit_foreground(
        self,
        nodes: int,
        run_s: float,
        *,
        name: str = "foreground",
        limit_minutes: int = 5,
        user: str | None = None,
        options: tuple[str, ...] = (),
    ) -> str:
        """Submit a job that has whole nodes of `main` for so long; returns its id."""
        return self._sbatch(
            f"exec sleep {float(run_s)}",
            ["--partition=main", "--exclusive", f"--nodes={nodes}", f"--job-name={name}", *options],
            limit_minutes,
            user,
        )

    def submit_gpus(self, gpus: int, run_s: float, *, nodes: int = 1, options: tuple[str, ...] = ()) -> str:
        """Submit a job that has so many GPUs, with a core for each, on each of its nodes of `main`, and shares the
        nodes; returns its id."""
        asked = [f"--gres=gpu:{gpus}", f"--cpus-per-task={gpus}", f"--mem={1000 * gpus}"]
        return self._sbatch(
            f"exec sleep {float(run_s)}",
            ["--partition=main", f"--nodes={nodes}", "--job-name=foreground", *asked, *options],
            limit_minutes=10,
            user=None,
        )

    def occupy(self, nodes: int, *options: str, timeout_s: float = DEADLINE_S) -> str:
        """Have a foreground job take so many nodes and keep them until it is cancelled, with further options of
        `sbatch`; returns its id once it runs."""
        job = self.submit_foreground(nodes, run_s=7200.0, name="occupant", limit_minutes=120, options=options)
        self.wait_for_state(job, "RUNNING", timeout_s=timeout_s)
        return job

    def submit(
        self,
        partition: str,
        command: str,
        *,
        nodes: int = 1,
        name: str = "job",
        limit_minutes: int = 5,
        user: str | None = None,
        options: tuple[str, ...] = (),
    ) -> str:
        """Submit a job whose command is one step on each node, and so is told by SIGTERM; returns its id.

        `command` is a line of shell.
        """
        return self._sbatch(
            f"exec srun --kill-on-bad-exit=0 /bin/sh -c {shlex.quote(command)}",
            [f"--partition={partition}", "--exclusive", f"--nodes={nodes}", f"--job-name={name}", *options],
            limit_minutes,
            user,
        )

    def _sbatch(self, line: str, options: list[str], limit_minutes: int, user: str | None) -> str:
        shared = ["--parsable", "--output=/dev/null", "--no-requeue", f"--time={limit_minutes}", "--chdir=/"]
        printed = self.run("sbatch", *shared, *options, user=user, given=f"#!/bin/sh\n{line}\n")
        return printed.strip().partition(";")[0]

    def jobs(self) -> list[Job]:
        """Every job that `squeue` shows: pending, running, completing; a pending array is one."""
        lines = self.run("squeue", "--noheader", "--format=%i|%P|%T|%N|%u|%j").splitlines()
        found = [line.split("|", 5) for line in lines]
        return [Job(id, name, partition, state, nodes, user) for id, partition, state, nodes, user, name in found]

    def state_of(self, job: str) -> str:
        """The job's state by slurmctld: `PENDING`, `RUNNING`, `COMPLETED`, ..."""
        shown = self.run("scontrol", "show", "job", "--oneliner", job)
        return shown.partition("JobState=")[2].split()[0]

    def wait_for_state(self, job: str, *states: str, timeout_s: float = DEADLINE_S) -> str:
        """Return once the job is in one of the states, and which."""
        return self.wait_until(
            f"job {job} is {' or '.join(states)}, not {{}}",
            lambda: state if (state := self.state_of(job)) in states else None,
            timeout_s,
            lambda: self.state_of(job),
        )

    def wait_for_steps(self, program: str, count: int) -> None:
        """Return once so many of the program run: a job that is `RUNNING` may have no step yet for a signal."""
        self.wait_until(
            f"{count} {program} run, not {{}}",
            lambda: list(self.processes().values()).count(program) == count,
            now=self.processes,
        )

    def wait_for_end(self, job: str, timeout_s: float = DEADLINE_S) -> str:
        """Return once the job has ended, and how."""
        return self.wait_for_state(job, *ENDED, timeout_s=timeout_s)

    def sacct(self, *options: str) -> list[Accounted]:
        """Every job since the cluster was made, by `sacct`; `options` narrow it. It may lag by a second."""
        fields = "JobID,Partition,QOS,Submit,Eligible,Start,End,State,NodeList,User,JobName"
        shared = ["--allocations", "--parsable2", "--noheader", "--allusers", "--starttime=2000-01-01"]
        lines = self.run("sacct", *shared, "--duplicates", f"--format={fields}", *options).splitlines()
        return [_accounted(line.split("|", 10)) for line in lines]

    def wait_for_sacct(self, job: str, timeout_s: float = DEADLINE_S) -> Accounted:
        """The line of `sacct` of a job that has ended, once it says so."""

        def probe() -> Accounted | None:
            # The end may be known before the start, of a job that was short.
            return next((row for row in self.sacct(f"--jobs={job}") if row.state in ENDED and row.partition), None)

        return self.wait_until(f"sacct knows the end of job {job}", probe, timeout_s)

    def node_states(self) -> dict[str, str]:
        """Node -> `idle`, `allocated`, `completing`, `down*`, ..., as sinfo writes them."""
        return self.cluster.node_states()

    def set_node(self, name: str, state: str, reason: str = "test") -> None:
        """Set a node `DOWN`, `DRAIN`, or back with `RESUME`."""
        self.run("scontrol", "update", f"NodeName={name}", f"State={state}", f"Reason={reason}")

    def set_grace(self, grace_s: int) -> None:
        """Set the GraceTime of what is preempted, the partition or the QOS `fill`; `clean` puts it back."""
        if self.cluster.record().options.preemption == "qos":
            self.run("sacctmgr", "--immediate", "modify", "qos", "fill", "set", f"GraceTime={grace_s}")
        else:
            self.run("scontrol", "update", "PartitionName=fill", f"GraceTime={grace_s}")

    def cancel_all(self) -> None:
        """Cancel every job, and kill what does not heed it."""
        # A pending array is shown as `7_[0-4%2]`, which scancel does not understand.
        jobs = sorted({job.id.partition("_[")[0] for job in self.jobs()})
        if jobs:
            # First: of a job that is cancelled no step can be signalled, and Slurm itself waits for KillWait.
            self.attempt("scancel", "--signal=KILL", "--full", *jobs)
            self.attempt("scancel", *jobs)

    def clean(self) -> None:
        """No job, no reservation, every daemon running, every node idle, the grace as it was made."""
        if not self.daemon_runs("slurmdbd"):
            self.restart_slurmdbd()
        if not self.daemon_runs("slurmctld"):
            self.restart_slurmctld()
        self.cancel_all()
        for name in self._reservations():
            self.attempt("scontrol", "delete", f"ReservationName={name}")
        self.set_grace(self.cluster.record().options.grace_s)
        self.wait_until("every node is idle: {}", self._make_idle, now=self.node_states)
        self._end_strays()

    def _end_strays(self) -> None:
        """End what runs on though no job is left: a slurmctld that was killed may have forgotten its job."""
        deadline_s = time.monotonic() + _STRAYS_END_WITHIN_S
        while strays := [pid for pid, comm in self.processes().items() if comm not in _DAEMONS]:
            if time.monotonic() > deadline_s:
                processes.kill(strays)
            time.sleep(0.05)

    def _reservations(self) -> list[str]:
        lines = self.run("scontrol", "show", "reservation", "--oneliner").splitlines()
        return [line.split()[0].removeprefix("ReservationName=") for line in lines if "ReservationName=" in line]

    def _make_idle(self) -> bool:
        # A second call for whatever was being submitted during the first.
        self.cancel_all()
        for name, state in self.node_states().items():
            if state.startswith(("down", "drain", "fail")):
                self.attempt("scontrol", "update", f"NodeName={name}", "State=RESUME")
        return not self.jobs() and set(self.node_states().values()) == {"idle"}

    def daemon_runs(self, name: str) -> bool:
        """Whether slurmctld, slurmdbd or mariadbd does."""
        return name in self.processes().values()

    def kill(self, name: str, by: signal.Signals = signal.SIGKILL) -> None:
        """End slurmctld, slurmdbd or mariadbd, and return when it is gone.

        By SIGKILL slurmctld loses what it was told in its last five seconds or so, the ids of new jobs included.
        """
        processes.kill((pid for pid, comm in self.processes().items() if comm == name), by)

    def restart_slurmctld(self) -> None:
        """End it in order if it runs, start it on its state, and wait until it answers."""
        self.kill("slurmctld", signal.SIGTERM)
        self.cluster.start_slurmctld()

    def restart_slurmdbd(self) -> None:
        """End it in order if it runs, start it, and wait until it answers."""
        self.kill("slurmdbd", signal.SIGTERM)
        self.cluster.daemons.start_slurmdbd()

    def jwt(self, user: str = "root", lifespan_s: int = 3600) -> str:
        """A token for slurmrestd."""
        printed = self.run("scontrol", "token", f"username={user}", f"lifespan={lifespan_s}")
        return printed.strip().partition("=")[2]

    def processes(self) -> dict[int, str]:
        """Process id -> program of every daemon, step and job process of the cluster."""
        return processes.of_mark(self.cluster.record().mark)

    wait_until = staticmethod(wait_until)


def _remove_abandoned() -> None:
    """End the clusters of test runs that were killed."""
    for folder in abandoned_folders(_PREFIX):
        SlurmSite(folder).down()


def _accounted(fields: list[str]) -> Accounted:
    id, partition, qos, submit, eligible, start, end, state, nodes, user, name = fields
    times = _moment(submit), _moment(eligible), _moment(start), _moment(end)
    return Accounted(id, name, partition, qos, *times, state.split()[0], nodes, user)


def _moment(text: str) -> float | None:
    return None if text in ("Unknown", "None", "") else datetime.fromisoformat(text).timestamp()
