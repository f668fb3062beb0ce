"""How many ranks a fragment has: one for each of its slots, which may be a part of a node's."""

from __future__ import annotations

import json

import pytest

from cells import each
from fragment_configs import fragment_config
from oakum_worker.fragment.config_files import read_config, write_config
from oakum_worker.fragment.rank_starter import RankStarter, start_ranks


@each(("ranks", "started"), [(None, 4), (1, 1), (3, 3)])
def test_a_fragment_starts_as_many_ranks_as_it_has_slots_by_default_those_of_a_whole_node(
    tmp_path_factory: pytest.TempPathFactory, ranks: int | None, started: int
) -> None:
    folder = tmp_path_factory.mktemp("fragment")
    config = fragment_config(folder)
    whole_node = config.spec.model_copy(update={"ranks_per_node": 4, "max_nodes": 2})
    file = write_config(folder, config.model_copy(update={"spec": whole_node, "ranks": ranks}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RankStarter, "start_ahead", lambda _: None)
        assert [starter.local_rank for starter in start_ranks(file)] == list(range(started))
    assert read_config(file).num_ranks == started


@each(("ranks", "is_refused"), [(None, False), (4, False), (3, True)])
def test_a_worker_that_knows_whole_nodes_alone_refuses_a_part_of_one(
    tmp_path_factory: pytest.TempPathFactory, ranks: int | None, is_refused: bool
) -> None:
    """It ignores the number of ranks and would start those of a whole node, but takes no option that it does not
    know."""
    config = fragment_config(tmp_path_factory.mktemp("fragment"))
    spec = config.spec.model_copy(update={"ranks_per_node": 4, "max_nodes": 2})
    file = write_config(
        tmp_path_factory.mktemp("fragment"), config.model_copy(update={"spec": spec, "ranks": ranks})
    )
    assert ("exact" in json.loads(file.read_text(encoding="utf-8"))["spec"]) is is_refused
