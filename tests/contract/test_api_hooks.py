"""POST /v1/hooks/slurm: a job wakes the controller once, repeated reports count once, and old reports change
nothing."""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ClusterShell.NodeSet import NodeSet
from sqlalchemy import text

from api_under_test import ApiUnderTest, FakeScheduler, problem_of
from cells import each
from oakum_service.api.auth import Role
from oakum_service.control.retention import forget
from oakum_service.db.models.callers import ApiToken
from oakum_service.db.models.cluster import HookEventRecord
from oakum_service.schedulers.port import HookEvent, HookKind
from oakum_service.schedulers.slurm.hooks import routes
from oakum_service.schedulers.slurm.hooks.rows import STALE_S
from waiting import wait_until

PATH = "/v1/hooks/slurm"


@dataclass
class ListeningScheduler(FakeScheduler):
    """A scheduler that records the hook events that it is told of."""

    told: list[HookEvent] = field(default_factory=list)
    fails: bool = False

    def on_hook(self, event: HookEvent) -> None:
        self.told.append(event)
        if self.fails:
            raise RuntimeError("the adapter has a bug")


@pytest.fixture
def scheduler() -> ListeningScheduler:
    return ListeningScheduler()


def told_by(hook: str, **fields: object) -> dict[str, Any]:
    """What a hook of job 7 sends: every value as text, as the scripts do."""
    document = {"hook": hook, "job_id": "7", "nodes": "n[1-4]", "uid": "1000", "partition": "batch"}
    document |= {"start_at": f"{time.time():.0f}", "at": f"{time.time():.0f}"}
    document |= {"node": "n1"} if hook in ("prolog", "epilog") else {"restart": "0", "cluster": "test"}
    return document | fields


def send(api: ApiUnderTest, *events: dict[str, Any]) -> None:
    response = api.hook.post(PATH, json={"events": list(events)})
    assert (response.status_code, response.content) == (204, b"")


def rows(api: ApiUnderTest) -> list[HookEventRecord]:
    with api.sessions.begin() as session:
        return session.query(HookEventRecord).order_by(HookEventRecord.job_id, HookEventRecord.restart).all()


def kinds_told(scheduler: ListeningScheduler) -> list[tuple[HookKind, str, str]]:
    return [(event.kind, event.job, event.nodes) for event in scheduler.told]


def test_an_allocation_is_written_down_and_told_at_once(api: ApiUnderTest, scheduler: ListeningScheduler) -> None:
    seen, now = api.news_for_controller.version, float(int(time.time()))
    send(api, told_by("prolog_slurmctld", at=str(int(now)), start_at=str(int(now)), end_at=str(int(now) + 60)))
    assert scheduler.told == [HookEvent(HookKind.ALLOCATED, "7", "n[1-4]", "batch", 1000, now, now)]
    assert api.news_for_controller.version == seen + 1
    (row,) = rows(api)
    assert (row.cluster, row.job_id, row.restart, row.kind) == ("test", 7, 0, "allocated")
    assert (row.nodes, row.heard, row.count) == ("n[1-4]", {"prolog_slurmctld": ""}, 1)
    assert (row.first_at, row.newest_at, row.start_at, row.end_at) == (now, now, now, now + 60)


def test_a_job_has_ended_when_it_ends_and_when_its_last_node_is_free(
    api: ApiUnderTest, scheduler: ListeningScheduler
) -> None:
    """Slurm runs the head node's epilog beside the nodes', in any order."""
    ended = [(HookKind.ENDED, "7", "n[1-4]")]
    send(api, told_by("epilog", node="n1"))
    send(api, told_by("epilog_slurmctld"))
    send(api, told_by("epilog", node="n2"))
    send(api, told_by("epilog", node="n3"))
    assert kinds_told(scheduler) == ended
    send(api, told_by("epilog", node="n4"))
    send(api, told_by("epilog", node="n4"), told_by("epilog_slurmctld"))
    assert kinds_told(scheduler) == ended * 2
    (row,) = rows(api)
    assert (row.count, row.heard) == (5, {"epilog": "n[1-4]", "epilog_slurmctld": ""})


def test_what_is_sent_again_is_counted_once(api: ApiUnderTest, scheduler: ListeningScheduler) -> None:
    before = counted(api)
    event, other = told_by("prolog_slurmctld"), told_by("prolog", node="n2")
    for _ in range(3):
        send(api, event, other, event)
    assert len(scheduler.told) == 1
    assert [row.count for row in rows(api)] == [2]
    gained = {key: count - before.get(key, 0.0) for key, count in counted(api).items()}
    assert gained[("prolog_slurmctld", "taken")] == 1
    assert gained[("prolog_slurmctld", "duplicate")] == 5
    assert gained[("prolog", "taken")] == 1


def counted(api: ApiUnderTest) -> dict[tuple[str, str], float]:
    """`oakum_hook_events_total` as anybody sees it."""
    answer = api.anonymous.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    found = {}
    for line in answer.text.splitlines():
        if line.startswith("oakum_hook_events_total{"):
            labels, _, value = line.partition("{")[2].partition("} ")
            hook, result = (part.partition("=")[2].strip('"') for part in labels.split(","))
            found[hook, result] = float(value)
    return found


def test_1000_prologs_of_one_job_at_once_are_one_event(api: ApiUnderTest, scheduler: ListeningScheduler) -> None:
    """The prologs are sent from many threads in any order, after the head node's hook, and some of them twice."""
    seen = api.news_for_controller.version
    nodes = [f"n{number:04}" for number in range(1, 1001)]
    send(api, told_by("prolog_slurmctld", nodes="n[0001-1000]"))
    posts = [told_by("prolog", node=node, nodes="n[0001-1000]") for node in [*nodes, *nodes[:100]]]
    random.Random(3).shuffle(posts)
    with ThreadPoolExecutor(16) as threads:
        list(
            threads.map(lambda batch: send(api, *batch), [posts[at : at + 25] for at in range(0, len(posts), 25)])
        )
    assert kinds_told(scheduler) == [(HookKind.ALLOCATED, "7", "n[0001-1000]")]
    assert api.news_for_controller.version == seen + 1
    (row,) = rows(api)
    assert row.count == 1001
    assert (row.nodes, row.heard["prolog"]) == ("n[0001-1000]", "n[0001-1000]")


def test_hooks_that_know_only_their_own_node_are_few_events_with_each_node_once(
    api: ApiUnderTest, scheduler: ListeningScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oakum_service.schedulers.slurm.hooks.event_writer._GROWTH_S", 2.0)
    nodes = [f"n{number:03}" for number in range(1, 121)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda node: send(api, told_by("prolog", node=node, nodes="")), nodes))
    wait_until("the whole job is told", lambda: scheduler.told[-1].nodes == "n[001-120]")
    assert len(scheduler.told) < 30
    (row,) = rows(api)
    assert (row.count, row.nodes, len(NodeSet(row.heard["prolog"]))) == (120, "n[001-120]", 120)


def test_a_job_that_starts_again_is_another_event(api: ApiUnderTest, scheduler: ListeningScheduler) -> None:
    send(api, told_by("prolog_slurmctld"))
    send(api, told_by("epilog_slurmctld"))
    send(api, told_by("prolog_slurmctld", restart="1", nodes="n[5-8]"))
    assert kinds_told(scheduler) == [
        (HookKind.ALLOCATED, "7", "n[1-4]"),
        (HookKind.ENDED, "7", "n[1-4]"),
        (HookKind.ALLOCATED, "7", "n[5-8]"),
    ]


def test_a_nodes_hook_that_does_not_know_the_run_is_told_by_its_start(
    api: ApiUnderTest, scheduler: ListeningScheduler
) -> None:
    now = int(time.time())
    send(api, told_by("prolog", start_at=str(now - 200), at=str(now - 200)))
    send(api, told_by("prolog_slurmctld", start_at=str(now - 199), at=str(now - 199)))
    send(api, told_by("prolog", start_at=str(now), at=str(now)))
    send(api, told_by("prolog_slurmctld", restart="1", start_at=str(now), at=str(now)))
    send(api, told_by("prolog", node="n2", start_at=str(now - 200), at=str(now - 190)))
    assert [(row.restart, row.count) for row in rows(api)] == [(0, 3), (1, 2)]
    assert len(scheduler.told) == 2


def test_jobs_of_two_clusters_are_two(api: ApiUnderTest, scheduler: ListeningScheduler) -> None:
    send(api, told_by("prolog_slurmctld"), told_by("prolog_slurmctld", cluster="other"))
    assert len(rows(api)) == len(scheduler.told) == 2


def test_of_replayed_old_events_the_newest_is_told_without_its_nodes(
    api: ApiUnderTest, scheduler: ListeningScheduler
) -> None:
    """What they say of nodes may no longer be true, but a scheduler that is read rarely has to be read."""
    old = int(time.time() - STALE_S)
    ages = {"7": 90, "8": 5, "9": 50}
    send(api, *(told_by("epilog_slurmctld", job_id=job, at=str(old - age)) for job, age in ages.items()))
    assert [row.count for row in rows(api)] == [1, 1, 1]
    assert [(event.job, event.nodes, event.at) for event in scheduler.told] == [("8", "", float(old - 5))]


def test_an_allocation_that_comes_after_the_jobs_end_tells_nobody(
    api: ApiUnderTest, scheduler: ListeningScheduler
) -> None:
    send(api, told_by("epilog_slurmctld"))
    send(api, told_by("prolog_slurmctld"), told_by("prolog"))
    assert kinds_told(scheduler) == [(HookKind.ENDED, "7", "n[1-4]")]
    assert sorted((row.kind, row.count) for row in rows(api)) == [("allocated", 2), ("ended", 1)]


def test_a_clock_that_is_ahead_says_now(api: ApiUnderTest, scheduler: ListeningScheduler) -> None:
    send(api, told_by("prolog_slurmctld", at=str(int(time.time()) + 86400)))
    assert scheduler.told[0].at <= time.time()


def test_an_error_of_the_adapter_has_no_hook_send_again(api: ApiUnderTest, scheduler: ListeningScheduler) -> None:
    scheduler.fails = True
    send(api, told_by("prolog_slurmctld"))
    send(api, told_by("epilog_slurmctld"))
    assert [row.count for row in rows(api)] == [1, 1]
    assert len(scheduler.told) == 2


def test_another_schedulers_service_counts_and_looks(data_dir: Path) -> None:
    api = ApiUnderTest(data_dir)
    seen = api.news_for_controller.version
    send(api, told_by("prolog_slurmctld"))
    assert ([row.count for row in rows(api)], api.news_for_controller.version) == ([1], seen + 1)
    api.engine.dispose()


def test_an_empty_list_tries_the_token(api: ApiUnderTest) -> None:
    send(api)
    assert rows(api) == []


def test_only_hooks_and_admins_post_and_a_hooks_token_opens_nothing_else(api: ApiUnderTest) -> None:
    body = {"events": [told_by("prolog_slurmctld")]}
    for client, role in ((api.viewer, "viewer"), (api.user, "user")):
        detail = problem_of(client.post(PATH, json=body), 403)["detail"]
        assert detail == f"POST {PATH} needs the role hook or admin; this token has {role}"
    assert rows(api) == []
    assert api.admin.post(PATH, json=body).status_code == 204
    for path in ("/v1/nodes", "/v1/trainers", "/v1/events/recent"):
        assert "this token has hook" in problem_of(api.hook.get(path), 403)["detail"]
    assert Role.HOOK < Role.VIEWER


@each(
    ("fields", "line"),
    [
        ({"hook": "task_prolog"}, "events.0.hook: Input should be 'prolog_slurmctld'"),
        ({"job_id": "0"}, "events.0.job_id: Input should be greater than or equal to 1"),
        ({"job_id": "x"}, "events.0.job_id: Input should be a valid integer"),
        ({"job_id": str(2**63)}, "events.0.job_id: "),
        ({"nodes": "n[1-"}, "events.0.nodes: expected a folded node list such as n[001-003,007],gpu1"),
        ({"nodes": "n1;reboot"}, "events.0.nodes: expected a folded node list such as n[001-003,007],gpu1"),
        ({"nodes": "@all"}, "events.0.nodes: expected a folded node list such as n[001-003,007],gpu1"),
        ({"nodes": "n[1-999999999]"}, "events.0.nodes: a node list of more than 65,536 nodes"),
        ({"nodes": "n[1-9999]x[1-9999]"}, "events.0.nodes: a node list of more than 65,536 nodes"),
        ({"nodes": "n[1-99999999999999]"}, "events.0.nodes: a node list of more than 65,536 nodes"),
        ({"cluster": 'te"st'}, "events.0.cluster: String should match pattern"),
        ({"partition": "a\nb"}, "events.0.partition: String should match pattern"),
        ({"start_at": "inf"}, "events.0.start_at: "),
        ({"restart": "-1"}, "events.0.restart: "),
        ({"node": "n1"}, "events.0: prolog_slurmctld runs on no node: leave `node` out"),
        ({"hook": "prolog"}, "events.0: prolog runs on a node: send its name as `node`"),
    ],
)
def test_what_no_hook_would_say_is_refused_with_the_reason(
    api: ApiUnderTest, fields: dict[str, str], line: str
) -> None:
    response = api.hook.post(PATH, json={"events": [told_by("prolog_slurmctld") | fields]})
    (error,) = problem_of(response, 422)["errors"]
    assert error.startswith(line)
    assert rows(api) == []


def test_more_than_a_thousand_at_once_are_refused(api: ApiUnderTest) -> None:
    response = api.hook.post(PATH, json={"events": [told_by("prolog", node=f"n{n}") for n in range(1001)]})
    problem_of(response, 422)


def test_a_field_that_is_not_known_here_is_left_alone(api: ApiUnderTest) -> None:
    send(api, told_by("prolog_slurmctld", newer="thing"))
    assert len(rows(api)) == 1


def test_a_busy_database_is_said_in_good_time_and_loses_nothing(
    api: ApiUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oakum_service.schedulers.slurm.hooks.routes._PATIENCE_S", 0.05)
    with api.sessions.begin() as session:
        session.execute(text("SELECT 1"))
        response = api.hook.post(PATH, json={"events": [told_by("prolog_slurmctld")]})
        assert problem_of(response, 503)["detail"] == "the database is busy: send the events again later"
    wait_until("it is written all the same", lambda: [row.count for row in rows(api)] == [1])
    monkeypatch.undo()
    send(api, told_by("prolog_slurmctld"))
    assert [row.count for row in rows(api)] == [1]


def test_a_revoked_token_of_a_hook_is_good_for_seconds_only(
    api: ApiUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oakum_service.api.auth._REMEMBERED_S", -1.0)
    send(api)
    with api.sessions.begin() as session:
        session.query(ApiToken).where(ApiToken.name == "slurm-hooks").delete()
    problem_of(api.hook.post(PATH, json={"events": []}), 401)


def test_a_token_that_is_remembered_lends_nothing_to_others(api: ApiUnderTest) -> None:
    send(api)
    problem_of(api.viewer.post(PATH, json={"events": []}), 403)
    problem_of(api.anonymous.post(PATH, json={"events": []}), 401)
    problem_of(api.client("oakum-guessed").post(PATH, json={"events": []}), 401)
    send(api)


def test_rows_are_forgotten_after_a_day(api: ApiUnderTest) -> None:
    send(api, told_by("prolog_slurmctld"), told_by("prolog_slurmctld", job_id="8"))
    with api.sessions.begin() as session:
        session.execute(text("UPDATE hook_events SET received_at = received_at - 90000 WHERE job_id = 7"))
        forget(session, time.time())
    assert [row.job_id for row in rows(api)] == [8]


@pytest.mark.timeout(120)
@each("nodes", ["[" * 200_000, "n[" * 100_000, "n[1" + ",1" * 90_000, "n[1-2]" * 33_000 + "["])
def test_no_text_keeps_the_service_busy(api: ApiUnderTest, nodes: str) -> None:
    """A regular expression that backtracks at every bracket would take hours for such texts."""
    response = api.hook.post(PATH, json={"events": [told_by("prolog_slurmctld", nodes=nodes)]})
    (error,) = problem_of(response, 422)["errors"]
    assert error.startswith("events.0.nodes: ")


@pytest.mark.timeout(120)
def test_a_request_names_no_more_nodes_than_a_cluster_has_several_times(api: ApiUnderTest) -> None:
    lists = [f"n{number}x[1-60000]" for number in range(20)]
    events = [told_by("prolog_slurmctld", nodes=nodes) | {"job_id": str(n)} for n, nodes in enumerate(lists, 1)]
    (error,) = problem_of(api.hook.post(PATH, json={"events": events}), 422)["errors"]
    assert error == "events: lists of 1,200,000 nodes in one request: send at most 1,000,000 at once"
    assert rows(api) == []


def test_a_list_that_many_events_share_counts_once(api: ApiUnderTest) -> None:
    events = [told_by("prolog", node=f"n{number}", nodes="n[1-5000]") for number in range(1, 301)]
    assert api.hook.post(PATH, json={"events": events}).status_code == 204


def test_lists_are_expanded_beside_the_event_loop(api: ApiUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    expanded_in: list[bool] = []

    def check(nodes: str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            expanded_in.append(False)
        else:
            expanded_in.append(True)

    monkeypatch.setattr(routes, "check_nodes", check)
    assert api.hook.post(PATH, json={"events": [told_by("prolog_slurmctld")]}).status_code == 204
    assert expanded_in == [False]
