"""Fabricated results of replays, of the sizes and peculiarities that tests need."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from oakum_solver.replay.result import Losses, ReplayResult, ReplaySteps, TrainerOutcome

NETWORKS = ("AlexNet", "VGG16", "ResNet18", "DenseNet", "MnasNet", "ShuffleNet", "MobileNet")


def small_result(**changes: Any) -> ReplayResult:
    """Two hours, two steps, one finished and one endless trainer; 20 idle node-hours of which 15 trained."""
    result = ReplayResult(
        log="week.csv",
        policy="milp",
        cost="paper",
        objective="speedup",
        look_ahead_s=1800.0,
        nodes=40,
        hours=2.0,
        cut_hours=0.0,
        events=3,
        idle_node_hours=20.0,
        used_node_hours=18.0,
        productive_node_hours=15.0,
        equivalent_nodes=10.0,
        samples=9e6,
        achieved=80.0,
        achievable=100.0,
        efficiency=0.8,
        zero_cost_bound=0.9,
        losses=Losses(startup=0.5, grow=1.0, shrink=0.25, preemption=1.25, unallocated=2.0),
        rescales=7,
        trainers=(
            TrainerOutcome("first", 0.0, 60.0, 3600.0, 4e6, 4e6, 6.0, 3, ((60.0, 6), (3600.0, 0))),
            TrainerOutcome("endless", 0.0, 60.0, None, 5e6, None, 12.0, 4, ((60.0, 4), (3600.0, 8))),
        ),
        steps=ReplaySteps(
            time_s=np.array([0.0, 3600.0]),
            idle_nodes=np.array([12, 8]),
            used_nodes=np.array([10, 8]),
            running_trainers=np.array([2, 1]),
            rate=np.array([9.5, 7.5]),
            value=np.array([17100.0, 13500.0]),
            bound=np.array([17100.0, 15000.0]),
            optimal=np.array([True, False]),
            solve_s=np.array([0.01, 0.03]),
            solver=("greedy", "cbc"),
        ),
        wall_s=1.5,
        notes=("12 jobs larger than the machine skipped",),
    )
    return dataclasses.replace(result, **changes)


def large_result(
    num_steps: int = 24_000, num_trainers: int = 40, days: float = 15.0, seed: int = 3
) -> ReplayResult:
    """A fortnight of a large machine: a daily rhythm of idle nodes, trainers that come, grow, shrink and end."""
    random = np.random.default_rng(seed)
    end_s = days * 86400
    time_s = np.sort(np.append(0.0, random.uniform(0, end_s, num_steps - 1)))
    rhythm = 520 + 260 * np.sin(time_s / 86400 * 2 * np.pi) + 120 * np.sin(time_s / 86400 * 0.9)
    jumps = np.repeat(random.exponential(220, num_steps // 30 + 1), 30)[:num_steps] - 180
    idle = np.clip(rhythm + jumps, 0, 4360).astype(np.int64)
    used = np.minimum((idle * random.uniform(0.9, 1.0, num_steps)).astype(np.int64), 64 * num_trainers)
    lasts_h = np.diff(np.append(time_s, end_s)) / 3600
    idle_hours, used_hours = float(idle @ lasts_h), float(used @ lasts_h)
    value = used * 1700.0
    steps = ReplaySteps(
        time_s=time_s,
        idle_nodes=idle,
        used_nodes=used,
        running_trainers=np.minimum(num_trainers, used // 8 + 1),
        rate=used * 0.93,
        value=value,
        bound=value * np.where(random.random(num_steps) < 0.01, 1.01, 1.0),
        optimal=random.random(num_steps) > 0.01,
        solve_s=10 ** random.normal(-2.0, 0.35, num_steps),
        solver=tuple(np.where(random.random(num_steps) < 0.3, "greedy", "cbc").tolist()),
    )
    trainers = tuple(_trainer(number, random, end_s) for number in range(num_trainers))
    lost = {name: used_hours * part for name, part in zip(_PARTS, (0.0, 0.021, 0.008, 0.043), strict=True)}
    return small_result(
        log="theta-2022.swf.gz",
        nodes=4360,
        hours=end_s / 3600,
        cut_hours=21.5,
        events=num_steps + 40,
        idle_node_hours=idle_hours,
        used_node_hours=used_hours,
        productive_node_hours=used_hours - sum(lost.values()),
        equivalent_nodes=idle_hours / (end_s / 3600),
        efficiency=0.842,
        zero_cost_bound=0.937,
        losses=Losses(**lost, unallocated=idle_hours - used_hours),
        rescales=sum(trainer.rescales for trainer in trainers),
        trainers=trainers,
        steps=steps,
        wall_s=131.0,
        notes=("12 jobs larger than the machine skipped", "21.5 hours of maintenance cut out"),
    )


_PARTS = ("startup", "grow", "shrink", "preemption")


def _trainer(number: int, random: np.random.Generator, end_s: float) -> TrainerOutcome:
    endless = number % 4 == 0
    submit_s = 0.0 if number < 12 else float(random.uniform(0, 0.7 * end_s))
    start_s = submit_s + min(float(random.exponential(3000)), 0.05 * end_s)
    stop_s = end_s if endless else min(start_s + float(random.uniform(0.1, 0.5)) * end_s, 1.1 * end_s)
    times = np.sort(random.uniform(start_s, min(stop_s, end_s), 600))
    nodes = np.clip(np.abs(np.cumsum(random.normal(0, 6, 600))).astype(int), 0, 64)
    ended = not endless and stop_s < end_s
    wanted = None if endless else 1.3e8
    return TrainerOutcome(
        name=f"{NETWORKS[number % len(NETWORKS)]}-{number // len(NETWORKS) + 1}",
        submit_s=submit_s,
        start_s=start_s,
        end_s=stop_s if ended else None,
        samples=1.3e8 if ended else float(random.uniform(2e7, 1.2e8)),
        wanted_samples=wanted,
        node_hours=float(nodes.mean() * (min(stop_s, end_s) - start_s) / 3600),
        rescales=len(times),
        sizes=tuple(zip([start_s, *times.tolist()], [4, *nodes.tolist()], strict=True)),
    )
