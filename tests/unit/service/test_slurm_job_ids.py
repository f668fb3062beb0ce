"""The number of a submitted job, in what `sbatch` and sites' wrappers print."""

from __future__ import annotations

from cells import each
from oakum_service.schedulers.slurm.job_ids import read_job_id


@each(
    "answer",
    [
        "71",
        "71;cluster",
        "71;cluster;more",
        "Submitted batch job 71",
        "Submitted batch job 71 on cluster east",
        "*** Maintenance on 12 May ***\nYour project has 1200 hours\n\n71;east\n",
        "Charging 4 to job account 17\nSubmitted batch job 71",
        "Submitted batch job 71\n71\n",
    ],
)
def test_the_one_line_that_is_a_number_is_the_job(answer: str) -> None:
    assert read_job_id(answer) == "71"


@each(
    "answer",
    [
        "",
        "done",
        "job 71",
        "Submitted batch job",
        "Submitted batch job 71 soon",
        "71\n72",
        "0",
        "7.1",
        "-71",
        "7 1",
    ],
)
def test_what_tells_no_number_or_several_is_none(answer: str) -> None:
    assert read_job_id(answer) is None
