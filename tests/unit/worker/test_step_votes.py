"""What ranks say along with a step: sums keep apart what the ranks have voted for."""

from __future__ import annotations

from oakum_worker.parallel.step_engine import StateVotes, StepVotes

MOST_RANKS = 4_095


def summed(votes: list[StepVotes]) -> StepVotes:
    """As a collective brings them: as floats."""
    signal, flag = (float(sum(numbers)) for numbers in zip(*(vote.numbers for vote in votes), strict=True))
    return StepVotes.of(signal, flag)


def test_sums_of_many_ranks_votes_stay_apart() -> None:
    votes = [StepVotes(signal=7), *[StepVotes(checkpoint=1, faults=1)] * (MOST_RANKS - 1), StepVotes(faults=1)]
    assert summed(votes) == StepVotes(7, MOST_RANKS - 1, MOST_RANKS)


def test_what_all_ranks_may_vote_is_counted_exactly_in_float32() -> None:
    assert sum(StepVotes(checkpoint=1, faults=1).numbers[1] for _ in range(MOST_RANKS)) < 2**24


def test_keepers_votes_come_back_under_the_names_that_they_went_out() -> None:
    mine = StateVotes(copies_arrived=1, shares_written=2, shares_failed=3, closing=4)
    assert StateVotes.of([float(number) for number in mine]) == mine
