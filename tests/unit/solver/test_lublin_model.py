"""Jobs drawn from the Lublin-Feitelson model."""

import itertools
import statistics

import pytest

from cells import each
from oakum_solver.errors import ProblemError
from oakum_solver.logs.lublin import ModelJob, lublin_jobs


def first(count: int, num_nodes: int, seed: int = 1) -> list[ModelJob]:
    return list(itertools.islice(lublin_jobs(num_nodes, seed), count))


def test_a_seed_draws_the_same_jobs_again() -> None:
    assert first(50, num_nodes=128) == first(50, num_nodes=128)
    assert first(50, num_nodes=128) != first(50, num_nodes=128, seed=2)


@each("num_nodes", [1, 2, 3, 8, 128, 4360])
def test_every_job_fits_its_machine(num_nodes: int) -> None:
    for job, later in itertools.pairwise(first(500, num_nodes)):
        assert 1 <= job.nodes <= num_nodes
        assert 0 < job.run_s <= job.requested_s <= 3 * job.run_s
        assert job.submit_s < later.submit_s
        assert later.id == job.id + 1


def test_the_mix_of_sizes_is_the_published_one() -> None:
    sizes = [job.nodes for job in first(4000, num_nodes=128)]
    assert sizes.count(1) / len(sizes) == pytest.approx(0.244, abs=0.03)
    # A serial job is no power of two here; of the others, some come out as one by chance.
    powers = sum(size > 1 and size & (size - 1) == 0 for size in sizes) / len(sizes)
    assert 0.576 < powers < 0.80


def test_larger_jobs_run_longer() -> None:
    jobs = first(4000, num_nodes=128)
    small = [job.run_s for job in jobs if job.nodes <= 8]
    large = [job.run_s for job in jobs if job.nodes >= 64]
    assert statistics.median(small) < statistics.median(large)


def test_stretched_arrivals_are_the_same_jobs_further_apart() -> None:
    for job, late in zip(first(50, 8), itertools.islice(lublin_jobs(8, 1, arrival_stretch=2.0), 50), strict=True):
        assert (late.nodes, late.run_s) == (job.nodes, job.run_s)
        assert late.submit_s == pytest.approx(2 * job.submit_s)


def test_a_machine_without_nodes_is_refused() -> None:
    with pytest.raises(ProblemError, match="0 nodes"):
        lublin_jobs(0, seed=1)
