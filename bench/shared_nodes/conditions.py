"""Runs the foreground jobs in one condition."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from shared_nodes import judged
from shared_nodes.fillers import TRAINERS, sleepers, trainer_spec, trainers
from shared_nodes.jobs import Arrival, Foreground
from shared_nodes.judged import Outcome, cause_text, disagreements
from slurm_service import SlurmService
from slurm_site import SlurmSite

CONDITIONS = ("filled", "killed", "sleepers")
_KILLS = 3
_DOWN_S = 5.0
_SETTLE_S = 120.0


@dataclass(frozen=True)
class Setting:
    """What is alike in all conditions."""

    site: SlurmSite
    arrivals: Sequence[Arrival]
    num_gpus: int
    """Of all nodes."""
    step_s: float
    grace_s: float


def measure(setting: Setting, condition: str, folder: Path) -> Outcome:
    """Run the foreground jobs while trainers, or jobs that sleep, have all other GPUs."""
    setting.site.clean()
    if condition == "sleepers":
        outcome = Outcome(condition)
        with sleepers(setting.site, setting.num_gpus):
            jobs = Foreground(setting.site, folder)
            _submit_all(jobs, setting.arrivals)
            outcome.waits_s = jobs.waits_s()
        return outcome
    with trainers(setting.site, folder, setting.num_gpus, setting.step_s, setting.grace_s) as service:
        outcome = _measured(setting, condition, folder, service)
    # Alone, steps need not sleep, and write nothing down among those of the ranks.
    specs = [trainer_spec(name, folder / "alone", 0.0, setting.num_gpus // 2) for name in TRAINERS]
    judged.judge_steps(outcome, folder, service.data_dir, specs)
    return outcome


def _measured(setting: Setting, condition: str, folder: Path, service: SlurmService) -> Outcome:
    outcome, jobs = Outcome(condition), Foreground(setting.site, folder)
    kills = _kills(len(setting.arrivals)) if condition == "killed" else []
    before, begin = service.client().cluster().idle_time, time.time()
    _submit_all(jobs, setting.arrivals, lambda number: _kill(service) if number in kills else None)
    outcome.waits_s = jobs.waits_s()
    jobs.wait_for_ends()
    after, end = service.client().cluster().idle_time, time.time()
    assert before is not None
    assert after is not None
    outcome.gpu_s = {
        "all": setting.num_gpus * (end - begin),
        "foreground": jobs.gpu_s(begin, end),
        **judged.spent(before, after),
    }
    outcome.ends = judged.ends_since(service.data_dir, begin)
    outcome.problems += _settled(setting.site, service)
    return outcome


def _submit_all(
    jobs: Foreground, arrivals: Sequence[Arrival], before_each: Callable[[int], object] = lambda _: None
) -> None:
    for number, arrival in enumerate(arrivals):
        time.sleep(arrival.gap_s)
        before_each(number)
        jobs.submit(arrival)


def _kills(num_jobs: int) -> list[int]:
    """The jobs right before which the service is killed."""
    return [(1 + kill) * num_jobs // (1 + _KILLS) for kill in range(_KILLS)]


def _kill(service: SlurmService) -> None:
    """Kill the service; it is started again as a supervisor would, while jobs go on to come."""
    service.kill()
    time.sleep(_DOWN_S)
    service.launch()


def _settled(site: SlurmSite, service: SlurmService) -> list[str]:
    """Where `squeue` and the database still disagree once they have had time to settle, and nobody wants
    anything."""
    deadline_s = time.monotonic() + _SETTLE_S
    while (found := disagreements(site, service)) and time.monotonic() < deadline_s:
        time.sleep(1.0)
    return found


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Waits, and what became of the GPUs that foreground jobs left."""
    waits = Table("condition", "jobs", "wait p50, s", "p90", "max")
    for one in outcomes:
        ordered = sorted(one.waits_s)
        p90 = ordered[int(0.9 * (len(ordered) - 1))]
        waits.add_row(
            one.condition,
            str(len(ordered)),
            *(f"{wait:.2f}" for wait in (statistics.median(ordered), p90, ordered[-1])),
        )
    return [waits, *([_use_table(filled)] if (filled := [one for one in outcomes if one.gpu_s]) else [])]


def _use_table(outcomes: Sequence[Outcome]) -> Table:
    table = Table("", *(one.condition for one in outcomes))

    def row(name: str, value: Callable[[Outcome], object]) -> None:
        table.add_row(name, *(str(value(one)) for one in outcomes))

    row(
        "idle GPU-time after start-up that fragments used",
        lambda one: f"{one.used_share('trained', 'stalled'):.1%}",
    )
    row("without stalls", lambda one: f"{one.used_share('trained'):.1%}")
    for name in ("all", "foreground", "idle", "trained", "stalled", "start_up", "late", "unwanted"):
        table.add_row(f"{name.replace('_', '-')}, GPU-s", *(f"{one.gpu_s[name]:.0f}" for one in outcomes))
    row("fragments that ended", lambda one: cause_text(one.ends))
    row("steps", lambda one: one.steps)
    row("ranks / started anew / steps left out", lambda one: f"{one.ranks} / {one.extra_ranks} / {one.gaps}")
    row("largest difference of a loss from alone", lambda one: f"{one.loss_difference:.2g}")
    row("problems", lambda one: "; ".join(one.problems) or "none")
    return table
