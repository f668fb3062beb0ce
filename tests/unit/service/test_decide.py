"""Membership decisions, one situation at a time."""

from __future__ import annotations

from typing import Any

import pytest

from cells import each
from oakum_service.control.decide import Decision, decide, is_unplanned
from oakum_service.control.fragment_view import FragmentView, Known, Late, Membership, view
from oakum_worker.protocol import FragmentReport, Held, Phase


def training(name: str, formed: int = 1, **changes: object) -> FragmentView:
    usual = {"phase": Phase.TRAINING, "alive": True, "formed": formed, "holds": formed > 0}
    hurried = changes.get("phase") is Phase.LEAVING
    return FragmentView(**{"id": name, "hurried": hurried, **usual, **changes})


def ready(name: str, at: float = 0.0) -> FragmentView:
    return FragmentView(id=name, phase=Phase.READY, alive=True, ready_at=at)


def test_the_first_ready_fragment_begins_a_generation() -> None:
    assert decide(Membership(0, (), 0), (ready("a"),), min_nodes=1) == Decision(("a",), 0, cause="1 joined")


def test_a_trainer_does_not_begin_below_its_minimum() -> None:
    assert decide(Membership(0, (), 0), (ready("a"),), min_nodes=2) is None


def test_newcomers_follow_the_survivors_in_the_order_in_which_they_became_ready() -> None:
    fragments = (ready("late", at=2.0), ready("early", at=1.0), training("old"))
    assert decide(Membership(1, ("old",), 0), fragments, min_nodes=1) == Decision(
        ("old", "early", "late"), 0, has_state=True, cause="2 joined"
    )


def test_newcomers_wait_until_the_trainer_can_use_them_all() -> None:
    names = ("a", "b", "c", "d")
    four = tuple(training(name) for name in names)
    more = tuple(ready(f"n{number}", at=float(number)) for number in range(4))
    assert decide(Membership(1, names, 0), (*four, *more[:3]), min_nodes=1, sizes=(1, 2, 4, 8)) is None
    assert decide(Membership(1, names, 0), (*four, *more), min_nodes=1, sizes=(1, 2, 4, 8)) == Decision(
        (*names, "n0", "n1", "n2", "n3"), 0, has_state=True, cause="4 joined"
    )


def test_when_one_goes_the_next_smaller_number_of_those_with_the_state_train_on() -> None:
    names = ("a", "b", "c", "d", "e", "f", "g", "h")
    seven = tuple(training(name) for name in names[1:])
    leaving = training("a", phase=Phase.LEAVING)
    now = Membership(1, names, 0)
    assert decide(now, (leaving, *seven), min_nodes=1, sizes=(1, 2, 4, 8)) == Decision(
        ("b", "c", "d", "e"), 0, has_state=True, left_out=("f", "g", "h"), cause="1 left, 3 left out"
    )
    restarted = FragmentView("b", Phase.READY, alive=True)
    lost = decide(Membership(1, names, 1), (restarted, *seven[1:]), min_nodes=1, sizes=(1, 2, 4, 8))
    assert lost is not None
    assert lost.members == ("c", "d", "e", "f")


def test_a_successor_waits_at_the_maximum_until_the_one_before_it_is_told_to_leave() -> None:
    now = Membership(1, ("a", "b"), 0)
    assert decide(now, (training("a"), training("b"), ready("c")), min_nodes=1, max_nodes=2) is None
    leaving = training("a", released=True)
    assert decide(now, (leaving, training("b"), ready("c")), min_nodes=1, max_nodes=2) == Decision(
        ("b", "c"), 0, has_state=True, cause="1 joined, 1 left"
    )


def test_a_last_replica_beyond_the_maximum_hands_its_state_on() -> None:
    now, leaving = Membership(1, ("a",), 0), training("a", released=True)
    assert decide(now, (training("a"), ready("b")), min_nodes=1, max_nodes=1) is None
    assert decide(now, (leaving, ready("b")), min_nodes=1, max_nodes=1) == Decision(
        ("a", "b"), 0, has_state=True, cause="1 joined"
    )


def test_a_newcomer_with_the_state_joins_members_without_it_at_the_maximum() -> None:
    bearer = FragmentView("b", Phase.READY, alive=True, holds=True)
    decision = decide(Membership(1, ("a",), 0), (training("a", holds=False), bearer), min_nodes=1, max_nodes=1)
    assert decision is not None
    assert decision.members == ("a", "b")


def test_fewer_than_the_smallest_number_pause() -> None:
    fragments = (training("a", phase=Phase.LEAVING), training("b"), training("c"), training("d"))
    decision = decide(Membership(1, ("a", "b", "c", "d"), 0), fragments, min_nodes=4, sizes=(4, 8))
    assert decision is not None
    assert decision.members == ()


def test_nothing_changes_while_all_is_well() -> None:
    assert decide(Membership(1, ("a", "b"), 0), (training("a"), training("b")), min_nodes=1) is None


def test_newcomers_wait_until_the_generation_before_has_formed() -> None:
    fragments = (training("a"), training("b", formed=0), ready("c"))
    assert decide(Membership(1, ("a", "b"), 0), fragments, min_nodes=1) is None


def test_a_fragment_that_was_told_to_leave_is_left_out_and_nobody_is_cut_off() -> None:
    fragments = (training("a", phase=Phase.LEAVING), training("b"))
    assert decide(Membership(1, ("a", "b"), 0), fragments, min_nodes=1) == Decision(
        ("b",), 0, has_state=True, cause="1 left"
    )


def test_a_released_fragment_is_left_out() -> None:
    fragments = (training("a"), training("b", released=True))
    assert decide(Membership(1, ("a", "b"), 0), fragments, min_nodes=1) == Decision(
        ("a",), 0, has_state=True, cause="1 left"
    )


def test_the_last_replica_writes_the_checkpoint() -> None:
    fragments = (training("a", phase=Phase.LEAVING), training("b", phase=Phase.LEAVING))
    assert decide(Membership(1, ("a", "b"), 0), fragments, min_nodes=1) == Decision(
        (), 0, saver="a", cause="2 left"
    )


def test_too_few_survivors_close_the_trainer_for_now() -> None:
    fragments = (training("a"), training("b", phase=Phase.LEAVING))
    decision = decide(Membership(1, ("a", "b"), 0), fragments, min_nodes=2)
    assert decision == Decision((), 0, saver="a", cause="2 left")


def test_a_lost_member_ends_the_generation_and_the_survivors_form_the_next() -> None:
    assert decide(Membership(3, ("a", "b"), 0), (training("b", formed=3),), min_nodes=1) == Decision(
        ("b",), 3, lost=("a",), has_state=True, cause="1 lost"
    )


def test_a_broken_connection_first_frees_everyone() -> None:
    fragments = (training("a", broken=1, phase=Phase.BROKEN), training("b"))
    decision = decide(Membership(1, ("a", "b"), 0), fragments, min_nodes=1)
    assert decision == Decision(None, 1, cause="a connection between members broke")


def test_after_a_break_the_members_that_have_not_answered_are_waited_for() -> None:
    fragments = (training("a", broken=1, phase=Phase.BROKEN), training("b"))
    assert decide(Membership(1, ("a", "b"), 1), fragments, min_nodes=1) is None


def test_after_a_break_with_nobody_lost_all_regroup() -> None:
    fragments = tuple(training(name, broken=1, phase=Phase.BROKEN) for name in "ab")
    decision = decide(Membership(1, ("a", "b"), 1), fragments, min_nodes=1)
    assert decision == Decision(("a", "b"), 1, has_state=True, cause="regrouped")


def test_a_rank_that_died_and_begins_anew_is_left_out_as_no_plan_wanted_it() -> None:
    fragments = (training("a", broken=1, phase=Phase.WARMING), training("b", broken=1, phase=Phase.BROKEN))
    decision = decide(Membership(1, ("a", "b"), 1), fragments, min_nodes=1)
    assert decision == Decision(("b",), 1, has_state=True, cause="1 left, regrouped")


def test_a_member_that_does_not_answer_in_time_is_given_up() -> None:
    fragments = (training("a", broken=1, phase=Phase.BROKEN), training("b", overdue=True))
    decision = decide(Membership(1, ("a", "b"), 1), fragments, min_nodes=1)
    assert decision == Decision(("a",), 1, lost=("b",), has_state=True, cause="1 lost")


def test_a_break_of_the_generation_before_frees_the_members_that_are_still_in_it() -> None:
    fragments = (training("a", formed=1, broken=1, phase=Phase.BROKEN), training("b", formed=1))
    decision = decide(Membership(2, ("a", "b"), 0), fragments, min_nodes=1)
    assert decision == Decision(None, 1, cause="a connection between members broke")


@pytest.mark.parametrize("members", [(), ("b", "c")])
def test_a_break_of_the_generation_before_is_heard_from_one_that_is_left_out(members: tuple[str, ...]) -> None:
    """Generation 2 has no members, since training pauses, or others; `b` and `c` may still be blocked in
    generation 1, which broke for `a` alone."""
    left_out = training("a", phase=Phase.READY, broken=1)
    others = (training("b", phase=Phase.LEAVING), training("c"))
    decision = decide(Membership(2, members, 0), (left_out, *others), min_nodes=2)
    assert decision == Decision(None, 1, cause="a connection between members broke")
    assert decide(Membership(2, (), 1), (left_out, *others[:1]), min_nodes=2) is None


def test_a_trainer_whose_members_are_all_gone_waits_for_newcomers() -> None:
    assert decide(Membership(4, ("a",), 0), (), min_nodes=1) == Decision((), 4, lost=("a",), cause="1 lost")
    assert decide(Membership(5, (), 4), (ready("n"),), min_nodes=1) == Decision(("n",), 4, cause="1 joined")


def test_one_that_vanishes_on_its_way_out_does_not_keep_the_others_waiting() -> None:
    """A node that loses power closes no connection, so the generation that the fragment was about to leave has
    to be ended for the others."""
    fragments = (training("a", alive=False, released=True), training("b"))
    decision = decide(Membership(2, ("b",), 0), fragments, min_nodes=1)
    assert decision == Decision(None, 1, cause="a connection between members broke")
    assert decide(Membership(2, ("b",), 1), fragments, min_nodes=1) is None


def test_one_that_has_left_in_order_changes_nothing() -> None:
    fragments = (training("a", alive=False, phase=Phase.LEFT), training("b"))
    assert decide(Membership(2, ("b",), 0), fragments, min_nodes=1) is None


def test_one_that_vanished_cuts_nobody_off_who_trains_without_it_already() -> None:
    """Only the generation that the fragment was in ends; the next one, formed or not, goes on."""
    fragments = (training("a", alive=False), training("b", formed=2))
    decision = decide(Membership(2, ("b",), 0), fragments, min_nodes=1)
    assert decision == Decision(None, 1, cause="a connection between members broke")


@each(
    ("cause", "unplanned"),
    [
        ("1 joined", False),
        ("2 joined, 1 left", False),
        ("1 joined, 1 lost", True),
        ("regrouped", True),
        ("", False),
    ],
)
def test_a_cause_says_whether_something_went_wrong(cause: str, unplanned: bool) -> None:
    assert is_unplanned(cause) is unplanned


def test_a_newcomer_waits_until_one_in_a_hurry_who_alone_knows_the_state_has_saved_it() -> None:
    """Alone, the newcomer would begin from an older checkpoint."""
    leaving = training("old", phase=Phase.LEAVING)
    assert decide(Membership(1, ("old",), 0), (leaving, ready("new")), min_nodes=1) == Decision(
        (), 0, saver="old", cause="1 left"
    )
    assert decide(Membership(2, (), 0), (leaving, ready("new")), min_nodes=1) is None
    gone = training("old", phase=Phase.LEFT, **{"alive": False})
    assert decide(Membership(2, (), 0), (gone, ready("new")), min_nodes=1) == Decision(
        ("new",), 0, cause="1 joined"
    )


def test_a_member_that_has_never_trained_does_not_carry_on_alone() -> None:
    """Its peer's node is taken while this newcomer still joins."""
    fragments = (training("old", phase=Phase.LEAVING), ready("new"))
    assert decide(Membership(2, ("new", "old"), 0), fragments, min_nodes=1) == Decision(
        (), 0, saver="old", cause="2 left"
    )


def test_one_that_the_plan_lets_go_first_shares_its_state_with_those_who_stay() -> None:
    """Only the plan wants the node back, so there is time to share the state, and no fragment has to begin from
    the disk."""
    released = training("old", released=True)
    assert decide(Membership(1, ("old",), 0), (released, ready("new")), min_nodes=1) == Decision(
        ("old", "new"), 0, has_state=True, cause="1 joined"
    )
    forming = (released, ready("new"))
    assert decide(Membership(2, ("old", "new"), 0), forming, min_nodes=1) is None
    formed = (training("old", formed=2, released=True), training("new", formed=2))
    assert decide(Membership(2, ("old", "new"), 0), formed, min_nodes=1) == Decision(
        ("new",), 0, has_state=True, cause="1 left"
    )


def test_a_rank_that_was_started_anew_without_state_is_no_holder_of_state() -> None:
    """The other node is taken while the generation that the restarted rank joins is formed, so the other node
    is told to save."""
    restarted = training("a", formed=1, phase=Phase.READY, broken=1, holds=False)
    leaving = training("b", formed=2, phase=Phase.LEAVING)
    decision = decide(Membership(3, ("b", "a"), 1), (leaving, restarted), min_nodes=1)
    assert decision == Decision((), 1, saver="b", cause="2 left")


def test_a_newcomer_waits_for_a_rank_that_goes_on_from_its_nodes_memory() -> None:
    recalling = training("old", phase=Phase.WARMING, broken=1, holds=False, recalls=True)
    assert decide(Membership(1, ("old",), 1), (recalling, ready("new")), min_nodes=1) == Decision(
        (), 1, saver="old", cause="1 left, regrouped"
    )
    assert decide(Membership(2, (), 1), (recalling, ready("new", at=2.0)), min_nodes=1) is None
    back = training("old", phase=Phase.READY, broken=1, ready_at=1.0)
    assert decide(Membership(2, (), 1), (back, ready("new", at=2.0)), min_nodes=1) == Decision(
        ("old", "new"), 1, has_state=True, cause="2 joined"
    )


def test_who_has_formed_a_generation_tells_that_its_other_members_were_there_too() -> None:
    """The other members may have the state, whatever they have reported until now, so their answers are
    awaited."""
    restarted = training("a", formed=2, phase=Phase.READY, broken=2, holds=False)
    unheard = ready("b")
    assert decide(Membership(2, ("a", "b"), 2), (restarted, unheard), min_nodes=1) is None


def test_after_a_break_nobody_waits_for_the_answer_of_a_member_that_is_leaving() -> None:
    fragments = (training("a", broken=1, phase=Phase.BROKEN), training("b", phase=Phase.LEAVING))
    assert decide(Membership(1, ("a", "b"), 1), fragments, min_nodes=1) == Decision(
        ("a",), 1, has_state=True, cause="1 left, regrouped"
    )


def test_the_break_of_a_generation_that_nobody_has_formed_needs_no_answers() -> None:
    """Nobody can have trained in it."""
    fragments = (training("a", broken=2, phase=Phase.BROKEN), training("b", broken=1, phase=Phase.BROKEN))
    assert decide(Membership(2, ("a", "b"), 2), fragments, min_nodes=1) == Decision(
        ("a", "b"), 2, has_state=True, cause="regrouped"
    )


def test_a_newcomer_with_the_state_waits_while_members_with_the_state_form_a_generation() -> None:
    newcomer = training("c", phase=Phase.READY)
    fragments = (training("a"), training("b", formed=0), newcomer)
    assert decide(Membership(1, ("a", "b"), 0), fragments, min_nodes=1) is None


def test_whom_only_the_plan_lets_go_is_kept_while_a_generation_forms() -> None:
    """It is not known yet which members have formed the generation."""
    fragments = (training("a"), training("b", released=True), ready("c"))
    assert decide(Membership(2, ("a", "b", "c"), 0), fragments, min_nodes=1) is None


def test_training_pauses_at_once_if_too_few_remain_without_whom_the_plan_lets_go() -> None:
    fragments = (training("a", released=True), training("b", formed=0))
    assert decide(Membership(1, ("a", "b"), 0), fragments, min_nodes=2) == Decision(
        (), 0, saver="a", cause="2 left"
    )


NOW = Membership(generation=2, members=("a",), ended_through=1)
REPORT = FragmentReport(phase=Phase.WARMING, sequence=1, pid=1, host="h", generation=1, broken=1)


@each(
    ("told", "late", "holds", "recalls"),
    [
        ({"holds": Held.RANKS, "phase": Phase.READY}, Late(), True, False),
        ({"holds": Held.NOWHERE, "phase": Phase.TRAINING}, Late(), False, False),
        ({"holds": Held.MEMORY}, Late(), False, True),
        ({"holds": Held.MEMORY}, Late(recall=True), False, False),
        ({"phase": Phase.TRAINING}, Late(), True, False),  # agents that are too old to tell
        ({"phase": Phase.READY}, Late(), False, False),
        ({"phase": Phase.WARMING}, Late(), False, False),
    ],
)
def test_what_a_report_says_of_the_state(told: dict[str, Any], late: Late, holds: bool, recalls: bool) -> None:
    seen = view(NOW, Known("a"), REPORT.model_copy(update=told), late)
    assert (seen.holds, seen.recalls) == (holds, recalls)
