"""How submitit starts fragments through Slurm: what of it runs here. What runs on the node is in `oakum_worker`.

submitit pickles `run_fragment` by reference and its argument, a path; everything else the fragment needs is in
the JSON file under that path.
"""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit
from submitit.core.core import Job
from submitit.core.utils import DelayedSubmission, FailedJobError, FailedSubmissionError

from oakum_service.documents.slots import node_of
from oakum_service.errors import SubmissionRefused
from oakum_service.schedulers.slurm.job_ids import read_job_id
from oakum_service.schedulers.slurm.slots import SlotShare
from oakum_worker.fragment.config_files import ARRAY_NAME, FragmentArray, write_config
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.launch import PYTHON
from oakum_worker.payload import run_fragment
from oakum_worker.user_environment import passed_on

_LONGEST_SHOWN = 300
_NOT_EXPORTED = ("OAKUM_", "SLURM_", "SBATCH_", "SRUN_", "SUBMITIT_")


@dataclass(frozen=True)
class SlurmJobOptions:
    """Options of `sbatch` that differ between fragments' jobs."""

    name: str
    partition: str
    time_limit_min: int
    signal_before_end_s: int
    """Seconds before the time limit at which Slurm sends SIGUSR2: the time for the last replica's checkpoint."""
    least_time_min: int | None = None
    """The shortest limit that Slurm may give the job instead, to fit it in before a pending job (`--time-min`).
    None: `time_limit_min` is the only one."""
    node: str | None = None
    """The node to run on; None lets Slurm choose."""
    share: SlotShare | None = None
    """What of the node the job asks for; None: all of it."""
    exclude: str | None = None
    """Nodes that Slurm may not choose, as a Slurm host list such as `n[1-4,7]`."""
    qos: str | None = None
    account: str | None = None
    extra: dict[str, str] = field(default_factory=dict)
    """Further options of `sbatch`, by long name: `{"gres": "gpu:4"}`."""
    sbatch: tuple[str, ...] = ("sbatch",)
    """The words of the command line that submits: `sbatch`, after any words that have to precede it."""
    find_job: Callable[[], str | None] = field(default=lambda: None, compare=False)
    """Looks up the number of the job that has just been submitted, where `sbatch` does not tell it."""


class _SlurmExecutor(submitit.SlurmExecutor):
    """submitit's Slurm executor that submits with the command in `SlurmJobOptions.sbatch`, and reads its answer
    strictly."""

    def __init__(self, folder: Path, sbatch: tuple[str, ...], find_job: Callable[[], str | None]) -> None:
        super().__init__(folder, python=shlex.join(PYTHON))
        self._sbatch = sbatch
        self._find_job = find_job

    @classmethod
    def affinity(cls) -> int:
        # submitit looks for `srun` on this machine; only the nodes need it.
        return 2

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [*self._sbatch, "--parsable", str(submission_file_path)]

    # submitit's own is static, and takes any number after the word `job`. It is called by an instance.
    def _get_job_id_from_submission_command(self, string: bytes | str) -> str:  # type: ignore[override]
        answer = string if isinstance(string, str) else string.decode(errors="replace")
        job_id = read_job_id(answer) or self._find_job()
        if job_id is None:
            raise FailedSubmissionError(
                f"{self._sbatch[-1]} --parsable answered {answer[-_LONGEST_SHOWN:]!r}, expected a job's number on "
                "a line of its own, and squeue shows no job of that name"
            )
        return job_id

    def submit_tasks(self, submissions: Sequence[DelayedSubmission]) -> str:
        """Submit `submissions` as the tasks of one job array; returns the array's job id.

        submitit's own method for arrays makes a plain `SlurmExecutor`, which ignores the given `sbatch` command.
        """
        pickles = [self.folder / f"{uuid.uuid4().hex}.pkl" for _ in submissions]
        for submission, pickle in zip(submissions, pickles, strict=True):
            submission.set_timeout(self.parameters["time"], self.max_num_timeout)
            submission.dump(pickle)
        self.parameters["map_count"] = len(submissions)
        array: Job[None] = self._submit_command(self._submitit_command_str)
        for index, pickle in enumerate(pickles):
            # A task that begins before the rename waits for its file.
            pickle.rename(self.folder / f"{array.job_id}_{index}_submitted.pkl")
        return str(array.job_id)


def submit_slurm(folder: Path, config: FragmentConfig, options: SlurmJobOptions) -> str:
    """Submit the fragment as a job on one node, or on a part of one; returns Slurm's job id.

    Raises `SubmissionRefused` with what `sbatch` said.
    """
    with _refusals(options):
        write_config(folder, config)
        return str(_executor(folder, options).submit(run_fragment, str(folder)).job_id)


def submit_slurm_array(folder: Path, configs: Sequence[FragmentConfig], options: SlurmJobOptions) -> list[str]:
    """Submit two or more fragments as one array, each task a job on one node, or on a part of one; returns the
    tasks' ids.

    Makes each fragment's own folder beside `folder`, with a link to the task's log. Raises `SubmissionRefused`
    with what `sbatch` said.
    """
    folders = [folder.parent / config.fragment for config in configs]
    with _refusals(options):
        for own, config in zip(folders, configs, strict=True):
            write_config(own, config)
        array_file = _write_array(folder, configs)
        tasks = [DelayedSubmission(run_fragment, str(own), str(array_file)) for own in folders]
        array = _executor(folder, options, num_tasks=len(tasks)).submit_tasks(tasks)
    job_ids = [f"{array}_{index}" for index in range(len(tasks))]
    for own, job_id in zip(folders, job_ids, strict=True):
        log = f"{job_id}_0_log.out"
        with suppress(OSError):  # the array has been accepted
            (own / log).symlink_to(Path("..", folder.name, log))
    return job_ids


def _write_array(folder: Path, configs: Sequence[FragmentConfig]) -> Path:
    """Write the file that lists the fragments of a job array into `folder`, which is made. The file appears
    complete or not at all. Returns its path."""
    array = FragmentArray(
        fragments=tuple(config.fragment for config in configs),
        addresses={node_of(config.node): config.node_address for config in configs},
    )
    folder.mkdir(mode=0o700)
    path = folder / ARRAY_NAME
    unfinished = path.with_suffix(".new")
    unfinished.write_text(array.model_dump_json(), encoding="utf-8")
    return unfinished.rename(path)


def _executor(folder: Path, options: SlurmJobOptions, num_tasks: int = 1) -> _SlurmExecutor:
    executor = _SlurmExecutor(folder, options.sbatch, options.find_job)
    executor.update_parameters(
        job_name=options.name,
        partition=options.partition,
        time=options.time_limit_min,
        nodes=1,
        ntasks_per_node=1,
        nodelist=options.node,
        exclude=options.exclude,
        qos=options.qos,
        account=options.account,
        signal_delay_s=options.signal_before_end_s,
        array_parallelism=num_tasks,
        stderr_to_stdout=True,
        # Slurm passes its own variables on whatever `export` says, the service's token SLURM_JWT among them.
        setup=["unset SLURM_JWT"],
        # The task has to see the whole node: without these options Slurm may bind it to one core.
        srun_args=["--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL"],
        additional_parameters=_additional(options),
    )
    return executor


@contextmanager
def _refusals(options: SlurmJobOptions) -> Iterator[None]:
    try:
        yield
    except (FailedJobError, FailedSubmissionError) as error:
        raise SubmissionRefused(_why_refused(str(error))) from error
    except OSError as error:
        raise SubmissionRefused(f"{error.filename or options.sbatch[0]}: {error.strerror}") from error


def _additional(options: SlurmJobOptions) -> dict[str, Any]:
    always: dict[str, Any] = {"no-requeue": True, "export": ",".join(_exported())}
    if options.least_time_min is not None:
        always["time-min"] = options.least_time_min
    share = options.share
    if share is None:
        return {**always, "exclusive": True, "mem": "0", **options.extra}
    memory = {"mem": f"{share.memory_mb}M"} if share.memory_mb else {}
    return {**always, "gres": share.gres, "cpus-per-task": str(share.cpus), **memory, **options.extra}


def _exported() -> list[str]:
    """Names of the environment variables that jobs inherit: all except those of Oakum, submitit and Slurm, and
    secrets; of Slurm's variables only SLURM_CONF."""
    names = [name for name in passed_on(os.environ) if name.isidentifier() and not name.startswith(_NOT_EXPORTED)]
    return [*names, "SLURM_CONF"] if "SLURM_CONF" in os.environ else names


def _why_refused(text: str) -> str:
    """Why a submission failed, on one line, from the text that it wrote: the lines that begin with `sbatch:`, all
    of them, as the first often names the limit; where there are none, every line, of a wrapper or of submitit."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("sbatch:")]
    return "; ".join(own or lines) or "sbatch did not answer in time, or said nothing"
