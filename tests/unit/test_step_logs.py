"""Benchmarks of rescaling see each change of membership in the ranks' logs of finished steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from peers.timeline import StepLogs

_SKEW_S = 0.01


def write(folder: Path, at: float, steps: Sequence[int], pids: Sequence[int], skew_s: float = _SKEW_S) -> None:
    """A process for each rank finishes the steps, one each second; each rank is a little later than the one
    before."""
    for rank, pid in enumerate(pids):
        for number, step in enumerate(steps):
            note(folder, at + number + rank * skew_s, pid, step, rank, len(pids))


def note(folder: Path, at: float, pid: int, step: int, rank: int, world_size: int) -> None:
    line = {"at": at, "pid": pid, "step": step, "rank": rank, "world_size": world_size}
    with (folder / f"{pid}.jsonl").open("a") as log:
        log.write(json.dumps(line) + "\n")


def test_a_switch_is_seen_where_another_process_is_a_rank_and_the_size_stays(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path)
    write(tmp_path, 0.0, [1, 2, 3], [10, 11, 12])
    assert (list(logs.switches(0.0)), logs.steps_together()) == ([], (3, 3))
    write(tmp_path, 7.0, [4, 5], [10, 11, 13])
    (switch,) = logs.switches(0.0)
    assert (switch.last.step, switch.first.step, switch.gap_s, switch.steps_lost) == (3, 4, 5.0, 0)
    assert logs.steps_together() == (3, 2)
    assert list(logs.switches(7.0)) == []
    write(tmp_path, 12.0, [6, 7, 8], [10, 13, 14])  # the middle one is killed, and the last one takes its rank
    assert [switch.first.step for switch in logs.switches(0.0)] == [4, 6]
    assert logs.steps_together() == (3, 3)


def test_switches_of_size_and_of_rank_0_are_seen_once_each(tmp_path: Path) -> None:
    write(tmp_path, 0.0, [1, 2], [10, 11, 12])
    write(tmp_path, 5.0, [3, 4], [10, 11])
    write(tmp_path, 10.0, [5, 6], [10, 11, 13])
    write(tmp_path, 15.0, [7, 8], [11, 13, 14])
    logs = StepLogs(tmp_path)
    assert [switch.first.step for switch in logs.switches(0.0)] == [3, 5, 7]
    assert logs.steps_together() == (3, 2)


def test_a_gap_is_the_longest_of_those_at_the_switch_and_a_step_before_and_after(tmp_path: Path) -> None:
    moments = {1: 0.0, 2: 10.0, 3: 13.0, 4: 14.0, 5: 15.0, 6: 21.0, 7: 28.0}
    for step, at in moments.items():
        write(tmp_path, at, [step], [10, 11 if step < 4 else 12 if step < 6 else 13])
    assert [switch.gap_s for switch in StepLogs(tmp_path).switches(0.0)] == [3.0, 7.0]


def test_a_repeated_step_is_the_new_memberships_first_whichever_rank_notes_it_first(tmp_path: Path) -> None:
    for skew_s in (_SKEW_S, -_SKEW_S):
        folder = tmp_path / str(skew_s)
        folder.mkdir()
        write(folder, 1.0, [1, 2], [10, 11], skew_s)
        note(folder, 3.0, 10, 3, 0, 2)  # rank 1 is killed before it notes this step
        write(folder, 7.0, [3, 4], [10, 12], skew_s)
        (switch,) = StepLogs(folder).switches(0.0)
        assert (switch.last.at, switch.first.at, switch.steps_lost) == (3.0, 7.0, 1)


def test_a_new_process_counts_once_rank_0_has_taken_its_step_too(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path)
    write(tmp_path, 0.0, [1, 2, 3], [10, 11])
    note(tmp_path, 7.0, 12, 4, 1, 2)
    assert (list(logs.switches(0.0)), logs.steps_together()) == ([], (2, 3))
    note(tmp_path, 7.1, 10, 4, 0, 2)
    assert ([switch.first.step for switch in logs.switches(0.0)], logs.steps_together()) == ([4], (2, 1))


def test_processes_without_a_rank_change_no_membership(tmp_path: Path) -> None:
    write(tmp_path, 0.0, [1, 2], [10, 11])
    for pid, step in ((12, 1), (13, 1), (12, 2), (13, 2)):
        note(tmp_path, step - 1 + pid / 1000, pid, step, -1, 2)
    assert list(StepLogs(tmp_path).switches(0.0)) == []
