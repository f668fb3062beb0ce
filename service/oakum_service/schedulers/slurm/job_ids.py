"""Reads the number of a submitted job from what `sbatch --parsable` prints, and from what sites put in its place.

Wrappers and plugins add lines to the answer: banners, charges, the name of the cluster. A line counts only as a
whole, and only one number may be told: a wrong one would lose a job, or cancel another's.
"""

from __future__ import annotations

import re

_LINE = re.compile(r"(?:Submitted batch job )?([1-9]\d*)(?:;\S*| on cluster \S+)?", re.ASCII)


def read_job_id(answer: str) -> str | None:
    """The job's number; None if no line tells one, or several lines tell different ones."""
    job_ids = {match[1] for line in answer.splitlines() if (match := _LINE.fullmatch(line.strip()))}
    return job_ids.pop() if len(job_ids) == 1 else None
