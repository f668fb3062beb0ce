"""Tags and notes of a trainer: changed at any time, found by, kept from others, and of no concern to training."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from api_under_test import ApiUnderTest, problem_of
from cells import each
from oakum_service.api.auth import Role
from oakum_service.db.models.trainers import Trainer, TrainerTag
from oakum_service.states import TrainerState

PATH = "/v1/trainers/digits"


def annotate(api: ApiUnderTest, **change: object) -> tuple[list[str], str]:
    """Tags and notes after this change by the trainer's user."""
    answer = api.user.patch(PATH, json=change)
    assert answer.status_code == 200, answer.text
    spec = answer.json()["spec"]
    return spec["tags"], spec["notes"]


def found(client: TestClient, query: str) -> list[str]:
    """Names of the trainers on the page that the query asks for."""
    answer = client.get(f"/v1/trainers?{query}")
    assert answer.status_code == 200, answer.text
    return [trainer["name"] for trainer in answer.json()["trainers"]]


@pytest.mark.parametrize("state", [None, TrainerState.FINISHED, TrainerState.FAILED])
def test_tags_and_notes_change_while_it_runs_and_after_its_end(
    api: ApiUnderTest, state: TrainerState | None
) -> None:
    trainer = api.submit(tags=["draft", "b-2"], notes="first")
    if state is not None:
        api.end(trainer["id"], state)
    changed = annotate(api, add_tags=["best", "draft"], remove_tags=["b-2", "never-had"])
    assert changed == (["draft", "best"], "first")
    letter = "\N{GREEK SMALL LETTER ALPHA}"
    changed = annotate(api, tags=["x"], notes=f"two\r\nlines\tand {letter}")
    assert changed == (["x"], f"two\nlines\tand {letter}")
    assert annotate(api, tags=[], notes="") == ([], "")
    if state is not None:
        problem_of(api.user.patch(PATH, json={"tags": ["x"], "weight": 0.5}), 409)


@each(
    ("change", "told"),
    [
        ({"tags": ["Upper"]}, "'Upper' is not a valid tag"),
        ({"tags": ["a" * 41]}, "use 1 to 40 lower-case letters"),
        ({"tags": ["a", "a"]}, "'a' is given twice"),
        ({"tags": [f"t{number}" for number in range(17)]}, "at most 16"),
        ({"add_tags": [f"t{number}" for number in range(16)]}, "at most 16"),
        ({"tags": ["a"], "add_tags": ["b"]}, "tags are all tags there will be"),
        ({"add_tags": ["b"], "remove_tags": ["b"]}, "'b' is to be added and removed"),
        ({"notes": "n" * 4001}, "4000"),
        ({"notes": "\x1b[2J"}, "U+001B at character 0 cannot be seen"),
        ({"notes": "a\u202eb"}, "U+202E at character 1 cannot be seen"),
    ],
)
def test_what_is_no_tag_and_no_note_is_refused(api: ApiUnderTest, change: dict[str, Any], told: str) -> None:
    if not api.trainer_names():
        api.submit(tags=["first"])
    problem = problem_of(api.user.patch(PATH, json=change), 422)
    assert told in "\n".join([problem["detail"], *problem["errors"]])
    assert api.user.get(PATH).json()["spec"]["tags"] == ["first"]
    if not change.keys() & {"add_tags", "remove_tags"}:
        other = {"name": "other", "entrypoint": "a:b", "global_batch": 8, "epochs": 1}
        problem = problem_of(api.user.post("/v1/trainers", json=other | change), 422)
        assert told in "\n".join([problem["detail"], *problem["errors"]])


def test_trainers_are_found_by_tag_page_by_page(api: ApiUnderTest) -> None:
    for number in range(4):
        trainer = api.submit(name=f"t{number}", tags=["all", "odd" if number % 2 else "even"])
        if number < 3:
            api.end(trainer["id"])
    assert found(api.user, "tag=all") == ["t0", "t1", "t2", "t3"]
    assert found(api.user, "tag=odd") == ["t1", "t3"]
    assert found(api.user, "tag=odd&live=true") == ["t3"]
    assert found(api.user, "tag=all&state=finished&user=ulla") == ["t0", "t1", "t2"]
    assert found(api.user, "tag=al") == found(api.user, "tag=all&user=uwe") == []
    first = api.user.get("/v1/trainers?tag=all&limit=2").json()
    assert [trainer["name"] for trainer in first["trainers"]] == ["t1", "t2", "t3"]
    assert found(api.user, f"tag=all&limit=2&before={first['next']}") == ["t0"]
    assert api.user.patch("/v1/trainers/t1", json={"remove_tags": ["all"]}).status_code == 200
    assert found(api.user, "tag=all") == ["t0", "t2", "t3"]


def test_nobody_finds_anothers_trainer_by_its_tags(api: ApiUnderTest) -> None:
    ended, _ = api.submit(name="ended", tags=["secret"]), api.submit(name="live", tags=["secret"])
    api.end(ended["id"])
    other = api.client(api.new_token("uwe", Role.USER))
    for query in ("tag=secret", "tag=secret&user=ulla", "tag=secret&limit=1"):
        answer = other.get(f"/v1/trainers?{query}").json()
        assert (answer["trainers"], answer["next"]) == ([], None)
    for reader in (api.user, api.viewer, api.admin):
        assert found(reader, "tag=secret") == ["ended", "live"]
    problem_of(other.patch("/v1/trainers/live", json={"tags": []}), 403)


def test_a_change_is_told_and_kept_and_makes_no_plan(api: ApiUnderTest) -> None:
    api.submit(tags=["a"])
    before = api.news_for_controller.version, api.news_for_readers.version
    annotate(api, add_tags=["b"], notes="n" * 1000)
    assert (api.news_for_controller.version, api.news_for_readers.version) == (before[0], before[1] + 1)
    newest = api.user.get("/v1/audit?limit=1").json()["entries"][0]
    assert (newest["action"], newest["actor"]) == ("trainer.changed", "ulla")
    assert newest["details"]["before"] == {"tags": ["a"], "notes": ""}
    assert newest["details"]["after"] == {"tags": ["a", "b"], "notes": "n" * 200 + "…"}
    event = max(api.user.get("/v1/events/recent").json()["events"], key=lambda one: one["id"])
    assert event["message"] == 'ulla changes tags to ["a", "b"], notes'
    annotate(api, weight=0.5)
    assert api.news_for_controller.version > before[0]


def test_nodes_are_told_neither_tags_nor_notes(api: ApiUnderTest) -> None:
    """A worker too old to know them would refuse the spec."""
    trainer = api.submit(tags=["a"], notes="what people should know")["id"]
    with api.sessions.begin() as session:
        config = api.context.configs.make("f", session.get_one(Trainer, trainer), "n1", "10.0.0.1")
        assert session.scalars(select(TrainerTag.tag)).all() == ["a"]
    assert (config.spec.tags, config.spec.notes) == ((), "")
