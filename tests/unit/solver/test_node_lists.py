"""Node lists as Slurm writes them: every form, within bounds."""

import pytest

from cells import each
from oakum_solver.logs.node_lists import fold, is_folded, unfold


@each(
    ("folded", "nodes"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[001-003,007],gpu1", ("n001", "n002", "n003", "n007", "gpu1")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]c[0-1]", ("r1c0", "r1c1", "r2c0", "r2c1")),
        ("gpu-[1-2]-a", ("gpu-1-a", "gpu-2-a")),
        ("sh-2-[3-4],x1000c0s0b0n0", ("sh-2-3", "sh-2-4", "x1000c0s0b0n0")),
        ("a.example.org,c[1-2].example.org", ("a.example.org", "c1.example.org", "c2.example.org")),
        ("n[1-3],n2", ("n1", "n2", "n3")),
    ],
)
def test_a_list_is_unfolded_in_its_order(folded: str, nodes: tuple[str, ...]) -> None:
    assert unfold(folded) == nodes
    assert is_folded(folded) == ("[" in folded)


@each("folded", ["n[1-", "n[5-1]", "n[a-b]", ",", "n1,,n2", "n1 n2", "n[]", "n[1,,2]", "n[1]]"])
def test_what_is_no_list_is_refused(folded: str) -> None:
    with pytest.raises(ValueError, match=r"node list .* (expected one such as|is no range)"):
        unfold(folded)


@each(
    ("folded", "size"),
    [
        ("a[1-200000]", "200,000"),
        ("r[1-999]n[1-999]", "998,001"),
        ("n[" + ",".join(["1-999999999999999999"] * 20) + "]", "19,999,999,999,999,999,980"),
    ],
)
def test_the_size_is_bounded_before_anything_is_unfolded(folded: str, size: str) -> None:
    with pytest.raises(ValueError, match=f"names {size} nodes: expected at most 65,536"):
        unfold(folded)


@pytest.mark.timeout(60)
@each("text", ["a," * 500_000 + "]", "[" * 500_000, "a[1" + ",1" * 500_000, ",".join(["a"] * 500_000) + "[1-"])
def test_the_time_grows_with_the_length_alone(text: str) -> None:
    """With another try from each comma, each of these would take hours."""
    with pytest.raises(ValueError):
        unfold(text)


@each(
    ("nodes", "folded"),
    [
        ([], ""),
        (["n5", "n0", "n4", "n5"], "n[0,4-5]"),
        (["n08", "n09", "n10", "n9"], "n[9,08-10]"),
        (["n9", "n10"], "n[9,10]"),
        (["gpu-1-a", "gpu-2-a"], "gpu-1-a,gpu-2-a"),
        (["sh-2-4", "sh-2-5"], "sh-2-[4-5]"),
        (["x1000c0s0b0n0", "x1000c0s0b0n1", "x1000c0s1b0n0"], "x1000c0s0b0n[0-1],x1000c0s1b0n0"),
        (["c1.example.org", "c2.example.org"], "c1.example.org,c2.example.org"),
        (["7", "login", "n123456789012"], "7,login,n123456789012"),
    ],
)
def test_lists_for_slurm_have_brackets_at_the_end_of_names_alone(nodes: list[str], folded: str) -> None:
    assert fold(nodes) == folded
    assert sorted(unfold(folded)) == sorted(set(nodes))
