"""Submits fragments to Slurm: one job on a given node, or many fragments as one job array on a set of nodes.

An array costs Slurm one call whatever its size. All its tasks share one list of nodes, so the array excludes every
other node and Slurm chooses which task gets which of its nodes. They also share one time limit. Fragments that
begin together must not end together, since a trainer would lose all its nodes at once: their limits differ by up
to a quarter, and many fragments are several arrays.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from oakum_service.config import SlurmSettings
from oakum_service.documents.node import Node
from oakum_service.documents.slots import is_part, node_of, slots_in
from oakum_service.errors import SchedulerError, SubmissionRefused
from oakum_service.schedulers.port import Snapshot
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.job_lookup import find_job
from oakum_service.schedulers.slurm.picture import Picture
from oakum_service.schedulers.slurm.sbatch import SlurmJobOptions, submit_slurm, submit_slurm_array
from oakum_service.schedulers.slurm.slots import ANY_GPU, SlotShare, share_of
from oakum_service.schedulers.slurm.snapshot import OakumInstance
from oakum_service.states import NodeState
from oakum_solver.logs.node_lists import fold
from oakum_worker.errors import ConfigError
from oakum_worker.fragment import CONFIG_NAME
from oakum_worker.fragment.config_files import read_config
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.spec_options import SlurmSpec

_log = logging.getLogger("oakum.slurm")
_SPREAD = 0.25
"""Largest part of the time limit by which a fragment's may be shorter."""
_MOST_ARRAYS = 4
"""Of one trainer's fragments at once."""


def submitted_for(folder: Path, fragment: str) -> str | None:
    """The slot for which the fragment's job was submitted, with `folder` as in `Submitter`; None where nobody
    knows it any more."""
    try:
        return read_config(folder / fragment / CONFIG_NAME).node
    except (OSError, ConfigError):
        return None


def _fraction(fragment: str) -> float:
    """A number from 0 to 1 that belongs to the fragment."""
    return int.from_bytes(hashlib.sha256(fragment.encode()).digest()[:4]) / 2**32


class _Limit(NamedTuple):
    """A job's time limit. Limits compare by their minutes."""

    minutes: int
    is_forecast: bool
    """Whether it is so short for the sake of a foreground job whose start is announced."""


class Submitter:
    """Submits fragments' jobs to Slurm, one by one or as arrays."""

    def __init__(
        self,
        settings: SlurmSettings,
        instance: OakumInstance,
        commands: SlurmCommands,
        folder: Path,
        grace_s: float,
    ) -> None:
        """`folder` is where submissions make a folder for each fragment and for each array."""
        self._settings = settings
        self._instance = instance
        self._commands = commands
        self._folder = folder
        self._grace_s = grace_s

    def submit(self, config: FragmentConfig, picture: Picture) -> str:
        """Submit the fragment's job to its node; returns Slurm's job id. Raises `SubmissionRefused` if Slurm
        refuses it, and `SchedulerError` if the node is no longer idle, or a foreground job is announced there too
        soon."""
        node = self._node(config, picture.snapshot)
        limit, share = self._limit(node, config.fragment), self._share(config.node, node, picture)
        options = self._options(config.fragment, config.spec.slurm, limit, share, node=node_of(config.node))
        return submit_slurm(self._folder / config.fragment, config, options)

    def submit_any(self, configs: Sequence[FragmentConfig], picture: Picture) -> dict[str, str]:
        """Submit the fragments to their nodes as one array, many as several; returns the job id of each submitted
        fragment.

        A fragment is left out if its node is no longer idle, or a foreground job is announced there too soon.
        Fragments whose jobs have to ask for different things are submitted one by one. Raises `SubmissionRefused`
        if Slurm refuses the first array; those of a later one that it refuses are left out.
        """
        snapshot = picture.snapshot
        limits = self._limits(configs, snapshot)
        configs = [config for config in configs if config.fragment in limits]
        shares = {self._share(config.node, self._node(config, snapshot), picture) for config in configs}
        if len(configs) <= 1 or len(shares) > 1:
            return {config.fragment: self.submit(config, picture) for config in configs}
        [share] = shares
        job_ids: dict[str, str] = {}
        for some in self._arrays(configs, limits):
            try:
                limit = min(limits[config.fragment] for config in some)
                job_ids |= self._submit_array(some, snapshot, limit, share)
            except SubmissionRefused as error:
                if not job_ids:
                    raise
                _log.warning("%d fragments are left out for now: %s", len(configs) - len(job_ids), error)
                break
        return job_ids

    def _arrays(
        self, configs: Sequence[FragmentConfig], limits: Mapping[str, _Limit]
    ) -> Iterator[Sequence[FragmentConfig]]:
        """The fragments of each array: those whose time limits are alike."""
        num = max(1, min(_MOST_ARRAYS, len(configs) // self._settings.array_from))
        ordered = sorted(configs, key=lambda config: limits[config.fragment])
        for index in range(num):
            some = ordered[index * len(ordered) // num : (index + 1) * len(ordered) // num]
            yield [config for config in configs if config in some]

    def _submit_array(
        self, configs: Sequence[FragmentConfig], snapshot: Snapshot, limit: _Limit, share: SlotShare | None
    ) -> dict[str, str]:
        array = str(uuid.uuid4())
        nodes = {node_of(config.node) for config in configs}
        others = fold({node_of(node.name) for node in snapshot.nodes} - nodes)
        asked = configs[0].spec.slurm  # all are of one trainer
        options = self._options(array, asked, limit, share, exclude=others or None)
        job_ids = submit_slurm_array(self._folder / array, configs, options)
        return {config.fragment: job_id for config, job_id in zip(configs, job_ids, strict=True)}

    def _limits(self, configs: Sequence[FragmentConfig], snapshot: Snapshot) -> dict[str, _Limit]:
        """Fragment's id -> the time limit of its job. Left out are fragments whose node is no longer idle, or is
        wanted too soon."""
        limits = {}
        for config in configs:
            try:
                node = self._node(config, snapshot)
                limits[config.fragment] = self._limit(node, config.fragment)
            except SchedulerError as error:
                _log.info("fragment on %s is left out: %s", config.node, error)
        return limits

    def _share(self, slots: str, node: Node, picture: Picture) -> SlotShare | None:
        """What a job for the slots of this name asks for of their node; None where it gets the node as a whole.
        `node` is one of them."""
        if not is_part(slots):
            return None
        gpu_type = node.node_type.partition("+")[0]
        return share_of(
            picture.nodes[node_of(node.name)], "" if gpu_type == ANY_GPU else gpu_type, len(slots_in(slots))
        )

    def _node(self, config: FragmentConfig, snapshot: Snapshot) -> Node:
        node = snapshot.node(config.node)
        if node is None:
            raise SchedulerError(f"{config.node} is not a node of partition {self._settings.partition}")
        if node.state is not NodeState.HOLE:
            wanted = "" if node.job is None else f": Slurm has it, or keeps it, for job {node.job}"
            raise SchedulerError(f"{node.name} is not idle any more{wanted}")
        if not config.spec.slurm.admits(node.features, node.reservation):
            raise SchedulerError(f"{node.name} is no longer a node that the trainer's slurm options let it have")
        return node

    def _limit(self, node: Node, fragment: str) -> _Limit:
        """The job's time limit in whole minutes: until the next foreground job announced for the node, at most the
        fragment's share of the configured limit. Raises `SchedulerError` if that is too short."""
        own_s = self._settings.longest_s * (1 - _SPREAD * _fraction(fragment))
        limit_s = longest_s = max(self._settings.shortest_s, own_s)
        if node.announced_at is not None:
            limit_s = min(limit_s, node.announced_at - time.time())
        if limit_s < self._settings.shortest_s:
            raise SchedulerError(
                f"{node.name} is wanted in {max(0.0, limit_s):.0f} s, and no fragment is submitted for less than "
                f"{self._settings.shortest_s:.0f} s"
            )
        return _Limit(int(limit_s // 60), limit_s < longest_s)

    def _options(
        self,
        intent: str,
        asked: SlurmSpec,
        limit: _Limit,
        share: SlotShare | None,
        *,
        node: str | None = None,
        exclude: str | None = None,
    ) -> SlurmJobOptions:
        """The options of a job or an array. Raises `SubmissionRefused` for what an administrator has ceased to
        allow since the trainer was submitted."""
        if (why := self._settings.refusal(asked)) is not None:
            raise SubmissionRefused(why)
        # Slurm's forecast changes whenever a job ends early. Without one, backfill would make jobs so short for
        # no reason.
        shortest_min = math.ceil(self._settings.shortest_s / 60)
        given = asked.model_dump(exclude_none=True)
        options = {name: value for name, value in self._settings.options.items() if name not in given}
        return SlurmJobOptions(
            name=self._instance.job_name(intent),
            partition=self._settings.partition,
            time_limit_min=limit.minutes,
            least_time_min=min(limit.minutes, shortest_min) if limit.is_forecast else None,
            signal_before_end_s=max(1, round(self._grace_s)),
            node=node,
            share=share,
            exclude=exclude,
            qos=asked.qos or self._settings.qos,
            account=asked.account or self._settings.account,
            extra=options | {name: value for name, value in given.items() if name not in ("qos", "account")},
            sbatch=self._commands.guarded("sbatch"),
            find_job=partial(find_job, self._commands, self._instance.job_name(intent)),
        )
