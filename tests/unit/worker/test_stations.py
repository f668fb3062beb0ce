"""Where ranks stand: which of them share a node or a fragment, and who keeps whose copy."""

from __future__ import annotations

import pytest

from cells import each
from oakum_worker.parallel.stations import copy_distance, node_sizes, other_end
from oakum_worker.protocol import Endpoint, Generation, Member, Station


def generation(*members: tuple[str, str, int]) -> Generation:
    """The members: (fragment, node, number of ranks)."""
    return Generation(
        number=1,
        members=tuple(
            Member(
                fragment=fragment,
                node=node,
                ranks=tuple(Endpoint(host=fragment, port=number) for number in range(size)),
            )
            for fragment, node, size in members
        ),
    )


def stations(*nodes: tuple[int, ...]) -> tuple[Station, ...]:
    """Of ranks on nodes, each of which has fragments of these sizes."""
    members = [
        (f"f{node}.{number}", f"n{node}", size)
        for node, sizes in enumerate(nodes)
        for number, size in enumerate(sizes)
    ]
    return generation(*members).stations


def test_the_ranks_of_a_node_stand_together_behind_its_first_member() -> None:
    """The oldest survivor stays rank 0, and what goes over the wire has this order already."""
    made = generation(("a", "n2", 1), ("b", "n1", 3), ("c", "n2", 2), ("d", "n3", 1), ("e", "n1", 1))
    assert [member.fragment for member in made.members] == ["a", "c", "b", "e", "d"]
    assert [made.first_rank(fragment) for fragment in "abcdex"] == [0, 3, 1, 7, 6, None]
    assert [station.node for station in made.stations] == ["n2"] * 3 + ["n1"] * 4 + ["n3"]
    assert Generation.model_validate_json(made.model_dump_json()) == made


@each(
    ("nodes", "sizes", "other"),
    [
        ([(1,)], (1,), None),
        ([(1, 2)], (3,), None),
        ([(4,), (4,)], (4, 4), 4),
        ([(1,), (3,)], (1, 3), 1),
        ([(2, 1), (1, 1), (1,)], (3, 2, 1), 3),
    ],
)
def test_nodes_have_the_ranks_of_all_their_fragments(
    nodes: list[tuple[int, ...]], sizes: tuple[int, ...], other: int | None
) -> None:
    found = stations(*nodes)
    assert node_sizes(found) == sizes
    assert other_end(found) == other


@each(
    ("nodes", "distance", "on_node", "in_fragment"),
    [
        ([(1,), (1,), (1,)], 1, 0, 0),
        ([(4,), (4,)], 4, 0, 0),
        ([(2,), (2,), (2,)], 2, 0, 0),
        ([(1, 1), (2,)], 2, 0, 0),
        ([(1,), (2,), (1, 2)], 3, 0, 0),
        ([(4,)], 1, 4, 4),  # there is nothing else
        ([(1, 1, 1)], 1, 3, 0),
        ([(2, 2)], 2, 4, 0),
        ([(1,), (3,)], 1, 2, 2),  # a single rank cannot keep three copies
        ([(2, 2), (1,)], 2, 3, 0),
    ],
)
def test_a_copy_goes_to_another_node_first_and_to_another_fragment_second(
    nodes: list[tuple[int, ...]], distance: int, on_node: int, in_fragment: int
) -> None:
    found = stations(*nodes)
    assert copy_distance(found) == distance
    pairs = [(one, found[(rank + distance) % len(found)]) for rank, one in enumerate(found)]
    assert sum(one.node == other.node for one, other in pairs) == on_node
    assert sum(one == other for one, other in pairs) == in_fragment


def test_a_rank_alone_has_nobody_to_keep_its_copy() -> None:
    with pytest.raises(ValueError, match="a rank alone"):
        copy_distance(stations((1,)))
