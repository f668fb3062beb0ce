"""Trainers that begin from the newest durable checkpoint of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api_under_test import SPEC, ApiUnderTest, problem_of
from oakum_service.api.auth import Role
from oakum_service.db.models.events import EventRecord
from oakum_service.states import TrainerState
from oakum_worker.checkpoint import manifest
from oakum_worker.checkpoint.adoption import is_adopted
from oakum_worker.checkpoint.best import write_best
from oakum_worker.checkpoint.folders import CheckpointFolders
from oakum_worker.protocol import BestEvaluation

PATHS = ("/v1/trainers", "/v1/trainers/check")


def save(folder: Path, step: int) -> Path:
    """Make a checkpoint folder with one file in it."""
    saved = folder / f"step-{step}"
    saved.mkdir(parents=True)
    (saved / "data").write_text(f"of step {step}")
    manifest.seal(saved, step)
    return saved


@pytest.fixture
def old(api: ApiUnderTest) -> dict[str, Any]:
    """A trainer that has diverged, with checkpoints of steps 20 and 40."""
    document = api.submit(name="old")
    folder = api.settings.checkpoints_dir / document["id"]
    for step in (20, 40):
        save(folder, step)
    (folder / "step-60.tmp-0123").mkdir()
    api.end(document["id"], TrainerState.DIVERGED)
    api.change_row(document["id"], checkpoint_step=40)
    return document


def test_it_has_the_others_checkpoints_which_outlive_the_other(api: ApiUnderTest, old: dict[str, Any]) -> None:
    checked = api.user.post("/v1/trainers/check?begin_from=old", json=SPEC)
    assert (checked.status_code, api.trainer_names()) == (204, ["old"])
    answer = api.user.post("/v1/trainers?begin_from=old", json=SPEC, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 201, answer.text
    new = answer.json()
    assert (new["checkpoint_step"], new["checkpoint_at"]) == (40, None)
    folder = api.settings.checkpoints_dir / new["id"]
    assert sorted(path.name for path in folder.iterdir()) == ["step-20", "step-40"]
    source = api.settings.checkpoints_dir / old["id"]
    assert [is_adopted(where / "step-40") for where in (folder, source)] == [True, False]
    assert (folder / "step-40" / "data").samefile(source / "step-40" / "data")
    for path in (source / "step-40").iterdir():
        path.unlink()
    manifest.verify(folder / "step-40")
    with api.sessions.begin() as session:
        told = [row.message for row in session.query(EventRecord) if row.subject == "digits"]
    assert told == ["tasks.digits:task, 2 epochs, from old at step 40"]
    again = api.user.post("/v1/trainers?begin_from=old", json=SPEC, headers={"Idempotency-Key": "k"})
    assert again.json() == new
    problem_of(api.user.post("/v1/trainers", json=SPEC, headers={"Idempotency-Key": "k"}), 409)
    assert len([*api.settings.checkpoints_dir.iterdir()]) == 2


@pytest.mark.parametrize("path", PATHS)
def test_who_may_not_or_cannot_begin_so_is_told_why(api: ApiUnderTest, old: dict[str, Any], path: str) -> None:
    def refused(status: int, who: str = "old", **fields: Any) -> str:
        detail: str = problem_of(api.user.post(f"{path}?begin_from={who}", json=SPEC | fields), status)["detail"]
        return detail

    assert "no trainer has the name or id 'nobody'" in refused(404, "nobody")
    assert "leave parallel.pipeline" in refused(409, parallel={"data": "sharded"})
    assert "leave parallel.pipeline" in refused(409, parallel={"pipeline": {}})
    otto = api.client(api.new_token("otto", Role.USER))
    theirs = problem_of(otto.post(f"{path}?begin_from=old", json=SPEC), 403)
    assert theirs["detail"] == "trainer 'old' is another user's: only its own user may begin from its state"
    api.change_row(old["id"], checkpoint_step=None)
    assert refused(409) == "trainer 'old' has no durable checkpoint to begin from: submit without --from"
    api.change_row(old["id"], checkpoint_step=40, state=TrainerState.RUNNING)
    assert refused(409) == "trainer 'old' is running: `oakum cancel old` ends it first"
    assert api.trainer_names() == ["old"]


def test_checkpoints_that_are_gone_are_told_and_nothing_is_left(api: ApiUnderTest, old: dict[str, Any]) -> None:
    source = api.settings.checkpoints_dir / old["id"]
    (source / "step-40" / "data").unlink()
    told = problem_of(api.user.post("/v1/trainers?begin_from=old", json=SPEC), 409)["detail"]
    assert told.startswith("digits cannot begin from old: the checkpoints in ")
    for path in source.iterdir():
        path.rename(source.parent.parent / path.name)
    told = problem_of(api.user.post("/v1/trainers?begin_from=old", json=SPEC), 409)["detail"]
    assert told == f"digits cannot begin from old: there is no durable checkpoint in {source}"
    assert (api.trainer_names(), [*source.parent.iterdir()]) == (["old"], [source])


def test_it_begins_from_the_step_that_is_named_or_the_best(api: ApiUnderTest, old: dict[str, Any]) -> None:
    source = api.settings.checkpoints_dir / old["id"]

    def refused(at: str, path: str = "") -> str:
        return str(problem_of(api.user.post(f"/v1/trainers{path}?begin_from=old/{at}", json=SPEC), 409)["detail"])

    for path in ("", "/check"):
        assert refused("last", path) == "'last' is no step to begin from: write NAME, NAME/1200 or NAME/best"
        assert refused("best", path).startswith("the trainer to begin from has no best checkpoint: name a step")
    assert refused("30").endswith(f"there is no checkpoint after step 30 in {source}; there are: 20, 40")
    write_best(source, BestEvaluation(metric="accuracy", value=0.5, step=20))
    for at, step, name in (("20", 20, "twenty"), ("best", 20, "best"), ("40", 40, "forty"), ("", 40, "newest")):
        answer = api.user.post(f"/v1/trainers?begin_from=old/{at}", json=SPEC | {"name": name})
        assert (answer.status_code, answer.json()["checkpoint_step"]) == (201, step), answer.text
        adopted = {path.name for path in (api.settings.checkpoints_dir / answer.json()["id"]).iterdir()}
        assert adopted == ({f"step-{step}"} if at else {"step-20", "step-40"})


def test_files_are_looked_at_while_no_transaction_is_open(
    api: ApiUnderTest, old: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a user's account that takes as long as the user likes, and everybody waits for a transaction."""
    looks: list[str] = []
    pool = api.sessions.kw["bind"].pool

    def watched(name: str) -> None:
        look = getattr(CheckpointFolders, name)

        def watch(*given: Any) -> Any:
            looks.append(f"{name} with {pool.checkedout()} connections in use")
            return look(*given)

        monkeypatch.setattr(CheckpointFolders, name, watch)

    for name in ("exist", "best_step", "adopt", "size_bytes"):
        watched(name)
    write_best(api.settings.checkpoints_dir / old["id"], BestEvaluation(metric="accuracy", value=0.5, step=20))
    assert api.admin.put("/v1/quotas/ulla", json={"storage_gib": 1.0}).is_success
    assert api.user.get("/v1/quotas/ulla").is_success
    for path in ("/check", ""):
        assert api.user.post(f"/v1/trainers{path}?begin_from=old/best", json=SPEC).is_success
    # Refused at last, as no node has been seen.
    problem_of(api.user.post("/v1/trainers/dry-run", json={"spec": SPEC | {"name": "new"}}), 409)
    api.change_row(old["id"], state=TrainerState.CANCELLED)
    assert api.user.post("/v1/trainers/old/retry").is_success
    asked = ["size_bytes", *["size_bytes", "best_step"] * 2, "adopt", "size_bytes", "size_bytes", "exist"]
    assert looks == [f"{name} with 0 connections in use" for name in asked]
