"""EASY backfilling never breaks the reservation that it gives."""

from hypothesis import given
from hypothesis import strategies as st

from oakum_solver.logs.easy import QueuedJob, RunningJob, easy_backfill

NOW_S = 500.0
SECONDS = st.sampled_from((1.0, 10.0, 60.0, 61.0, 600.0))
QUEUES = st.lists(st.tuples(st.integers(1, 8), SECONDS), max_size=8).map(
    lambda jobs: [QueuedJob(f"j{i}", nodes, requested_s) for i, (nodes, requested_s) in enumerate(jobs)]
)
RUNNING = st.lists(
    st.builds(RunningJob, st.integers(1, 4), SECONDS.map(lambda seconds: NOW_S - 30.0 + seconds)), max_size=6
)


def free_at(time_s: float, free_nodes: int, started: list[QueuedJob], running: list[RunningJob]) -> int:
    """Nodes free at `time_s` where every job ends as it is expected to."""
    taken = sum(job.nodes for job in started)
    back = sum(job.nodes for job in started if NOW_S + job.requested_s <= time_s)
    return free_nodes - taken + back + sum(job.nodes for job in running if job.expected_end_s <= time_s)


@given(st.integers(0, 10), QUEUES, RUNNING)
def test_the_head_starts_at_its_shadow_time(
    free_nodes: int, queue: list[QueuedJob], running: list[RunningJob]
) -> None:
    plan = easy_backfill(NOW_S, free_nodes, queue, running)
    started = [job for job in queue if job.id in plan.start]
    assert sum(job.nodes for job in started) <= free_nodes
    if plan.head is None:
        assert len(started) == len(queue)
        return
    head = next(job for job in queue if job.id == plan.head)
    assert [job.id for job in started] == list(plan.start)
    assert plan.head not in plan.start
    if plan.shadow_s < float("inf"):
        assert free_at(plan.shadow_s, free_nodes, started, running) == head.nodes + plan.spare_nodes


@given(st.integers(0, 10), QUEUES, RUNNING)
def test_backfilling_never_moves_the_reservation(
    free_nodes: int, queue: list[QueuedJob], running: list[RunningJob]
) -> None:
    plan = easy_backfill(NOW_S, free_nodes, queue, running)
    if plan.head is None:
        return
    before_head = [job.id for job in queue].index(plan.head)
    alone = easy_backfill(NOW_S, free_nodes, queue[: before_head + 1], running)
    assert (alone.head, alone.shadow_s) == (plan.head, plan.shadow_s)
    assert alone.start == plan.start[:before_head]


@given(st.integers(0, 10), QUEUES, RUNNING)
def test_a_turn_leaves_nothing_for_the_next(
    free_nodes: int, queue: list[QueuedJob], running: list[RunningJob]
) -> None:
    plan = easy_backfill(NOW_S, free_nodes, queue, running)
    started = [job for job in queue if job.id in plan.start]
    again = easy_backfill(
        NOW_S,
        free_nodes - sum(job.nodes for job in started),
        [job for job in queue if job.id not in plan.start],
        [*running, *(RunningJob(job.nodes, NOW_S + job.requested_s) for job in started)],
    )
    assert (again.start, again.head, again.shadow_s) == ((), plan.head, plan.shadow_s)
