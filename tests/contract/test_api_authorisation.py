"""Who may do what: every route of the API by the lowest role that may use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from api_under_test import SPEC, ApiUnderTest, path_with, problem_of, report
from cells import each
from oakum_service.api.auth import Role
from oakum_service.config import LocalClusterSettings
from oakum_service.db.models.callers import ApiToken
from oakum_service.schedulers.local import LocalCluster

ROLES = {
    ("GET", "/healthz"): None,
    ("GET", "/metrics"): None,
    ("GET", "/readyz"): None,
    ("GET", "/v1/trainers"): Role.VIEWER,
    ("POST", "/v1/trainers"): Role.USER,
    ("POST", "/v1/trainers/check"): Role.USER,
    ("POST", "/v1/trainers/read"): Role.USER,
    ("POST", "/v1/trainers/dry-run"): Role.USER,
    ("GET", "/v1/trainers/{ref}"): Role.VIEWER,
    ("PATCH", "/v1/trainers/{ref}"): Role.USER,
    ("PUT", "/v1/trainers/{ref}/pause"): Role.USER,
    ("DELETE", "/v1/trainers/{ref}/pause"): Role.USER,
    ("POST", "/v1/trainers/{ref}/cancel"): Role.USER,
    ("POST", "/v1/trainers/{ref}/retry"): Role.USER,
    ("GET", "/v1/trainers/{ref}/series"): Role.VIEWER,
    ("GET", "/v1/trainers/{ref}/node-use"): Role.VIEWER,
    ("GET", "/v1/trainers/{ref}/evaluations"): Role.VIEWER,
    ("GET", "/v1/trainers/{ref}/logs"): Role.VIEWER,
    ("GET", "/v1/trainers/{ref}/explain"): Role.VIEWER,
    ("GET", "/v1/nodes"): Role.VIEWER,
    ("GET", "/v1/holes"): Role.VIEWER,
    ("GET", "/v1/timeline"): Role.VIEWER,
    ("GET", "/v1/foreground/starts"): Role.VIEWER,
    ("GET", "/v1/timeline/rows"): Role.VIEWER,
    ("GET", "/v1/timeline/nodes"): Role.VIEWER,
    ("GET", "/v1/timeline/occupancy"): Role.VIEWER,
    ("GET", "/v1/cluster"): Role.VIEWER,
    ("POST", "/v1/cluster/foreground-jobs"): Role.ADMIN,
    ("GET", "/v1/hold"): Role.VIEWER,
    ("PUT", "/v1/hold"): Role.ADMIN,
    ("DELETE", "/v1/hold"): Role.ADMIN,
    ("GET", "/v1/notices"): Role.VIEWER,
    ("POST", "/v1/notices/test"): Role.USER,
    ("GET", "/v1/audit"): Role.VIEWER,
    ("GET", "/v1/ledger"): Role.VIEWER,
    ("GET", "/v1/settings"): Role.VIEWER,
    ("PUT", "/v1/settings/{name}"): Role.ADMIN,
    ("DELETE", "/v1/settings/{name}"): Role.ADMIN,
    ("GET", "/v1/objectives"): Role.VIEWER,
    ("GET", "/v1/forecast"): Role.VIEWER,
    ("PUT", "/v1/forecast"): Role.ADMIN,
    ("DELETE", "/v1/forecast"): Role.ADMIN,
    ("GET", "/v1/quotas"): Role.VIEWER,
    ("GET", "/v1/quotas/{user}"): Role.VIEWER,
    ("PUT", "/v1/quotas/{user}"): Role.ADMIN,
    ("DELETE", "/v1/quotas/{user}"): Role.ADMIN,
    ("GET", "/v1/session"): Role.VIEWER,
    ("POST", "/v1/session"): None,
    ("DELETE", "/v1/session"): Role.VIEWER,
    ("GET", "/v1/tokens"): Role.VIEWER,
    ("POST", "/v1/tokens"): Role.ADMIN,
    ("POST", "/v1/tokens/{token_id}/rotate"): Role.VIEWER,
    ("DELETE", "/v1/tokens/{token_id}"): Role.VIEWER,
    ("GET", "/v1/plans"): Role.VIEWER,
    ("GET", "/v1/plans/current"): Role.VIEWER,
    ("POST", "/v1/plans/preview"): Role.VIEWER,
    ("GET", "/v1/plans/{plan_id}"): Role.VIEWER,
    ("GET", "/v1/events"): Role.VIEWER,
    ("GET", "/v1/events/recent"): Role.VIEWER,
    ("POST", "/v1/hooks/slurm"): "hook",
    ("GET", "/v1/hooks/slurm/{job_id}"): "hook",
    ("POST", "/v1/cluster/snapshots"): "hook",
    ("POST", "/v1/fragments/{fragment_id}/report"): "fragment",
    ("GET", "/v1/fragments/{fragment_id}/directive"): "fragment",
}
GUARDED = [route for route, role in ROLES.items() if role is not None]
BY_ROLE = [route for route, role in ROLES.items() if isinstance(role, Role)]
BODIES = {
    "/v1/hold": {"reason": "a test"},
    "/v1/notices/test": {"webhook": "http://127.0.0.1:1/refused"},
    "/v1/trainers": SPEC,
    "/v1/trainers/check": SPEC,
    "/v1/trainers/read": {"text": "name: digits"},
    "/v1/trainers/dry-run": {"spec": SPEC},
    "/v1/cluster/foreground-jobs": {"nodes": 1, "run_s": 1.0},
}


def body_of(method: str, path: str) -> dict[str, object] | None:
    return None if method == "GET" else BODIES.get(path, {})


def test_every_route_is_listed_here_with_its_role(api: ApiUnderTest) -> None:
    documented = {
        (method.upper(), path) for path, operations in api.app.openapi()["paths"].items() for method in operations
    }
    assert documented == ROLES.keys()


@each(("method", "path"), GUARDED)
def test_without_a_token_nothing_is_answered(api: ApiUnderTest, method: str, path: str) -> None:
    response = api.anonymous.request(method, path_with(path), json=body_of(method, path))
    problem_of(response, 401)
    assert response.headers["WWW-Authenticate"] == "Bearer"


@each(("method", "path"), GUARDED)
def test_an_unknown_token_opens_nothing(api: ApiUnderTest, method: str, path: str) -> None:
    for token in ("oakum-guessed", "fragment-", "oäkum", "x" * 5000):
        headers = {"Authorization": f"Bearer {token}".encode()}
        response = api.anonymous.request(method, path_with(path), json=body_of(method, path), headers=headers)
        problem_of(response, 401)


@each(("method", "path"), BY_ROLE)
def test_a_role_may_do_what_the_list_says_and_no_more(api: ApiUnderTest, method: str, path: str) -> None:
    api.news_for_readers.close()  # the event stream ends at once
    needed = ROLES[method, path]
    for role, client in zip(Role, (api.hook, api.viewer, api.user, api.admin), strict=True):
        response = client.request(method, path_with(path), json=body_of(method, path))
        if role >= needed:
            assert response.status_code not in (401, 403), f"{role.name}: {response.text}"
            continue
        detail = problem_of(response, 403)["detail"]
        assert detail == (
            f"{method} {path_with(path)} needs the role {needed.name.lower()}; this token has {role.name.lower()}"
        )


def test_only_administrators_submit_above_priority_0(api: ApiUnderTest) -> None:
    detail = problem_of(api.user.post("/v1/trainers", json=SPEC | {"priority": 1}), 403)["detail"]
    assert detail == (
        "priority 1 needs the role admin; this token has user: give a priority of 0 or below, "
        "or ask an administrator"
    )
    assert api.trainer_names() == []
    for client, priority in ((api.user, 0), (api.user, -100), (api.admin, 100)):
        spec = SPEC | {"name": f"p{abs(priority)}-{client is api.admin}".lower(), "priority": priority}
        answer = client.post("/v1/trainers", json=spec)
        assert (answer.status_code, answer.json()["spec"]["priority"]) == (201, priority)


def test_a_trainer_is_its_submitters_whoever_scales_it(api: ApiUnderTest) -> None:
    assert api.submit()["user"] == "ulla"
    assert api.admin.patch("/v1/trainers/digits", json={"weight": 2.0}).json()["user"] == "ulla"
    assert api.admin.post("/v1/trainers", json=SPEC | {"name": "mine"}).json()["user"] == "anna"


def test_scaling_a_trainer_of_a_high_priority_needs_no_more_than_scaling_another(api: ApiUnderTest) -> None:
    api.submit()
    assert api.admin.patch("/v1/trainers/digits", json={"priority": 5}).status_code == 200
    answer = api.user.patch("/v1/trainers/digits", json={"max_nodes": 3})
    assert (answer.status_code, answer.json()["spec"]["priority"]) == (200, 5)


def test_a_refused_write_changes_nothing(api: ApiUnderTest) -> None:
    api.submit()
    before = api.viewer.get("/v1/trainers").json()
    problem_of(api.viewer.post("/v1/trainers", json=SPEC | {"name": "another"}), 403)
    problem_of(api.viewer.patch("/v1/trainers/digits", json={"weight": 9.0}), 403)
    problem_of(api.viewer.post("/v1/trainers/digits/cancel"), 403)
    assert api.viewer.get("/v1/trainers").json() == before


def test_another_scheme_than_bearer_is_no_token(api: ApiUnderTest) -> None:
    problem_of(api.anonymous.get("/v1/trainers", headers={"Authorization": "Basic YTpi"}), 401)


def test_a_revoked_token_opens_nothing_any_more(api: ApiUnderTest) -> None:
    client = api.client(api.new_token("leaver", Role.ADMIN))
    assert client.get("/v1/trainers").status_code == 200
    with api.sessions.begin() as session:
        for row in session.query(ApiToken).where(ApiToken.name == "leaver"):
            session.delete(row)
    problem_of(client.get("/v1/trainers"), 401)


def test_no_token_is_stored_as_it_is(api: ApiUnderTest) -> None:
    token = api.new_token("alice", Role.USER)
    api.engine.dispose()
    stored = b"".join(file.read_bytes() for file in api.settings.data_dir.glob("oakum.db*"))
    assert token.encode() not in stored


def test_a_fragments_agent_speaks_for_its_own_fragment_alone(api: ApiUnderTest) -> None:
    trainer = api.submit()["id"]
    own, other = api.add_fragment(trainer, "n1"), api.add_fragment(trainer, "n2")
    orphans = (api.anonymous, api.viewer, api.user, api.admin, api.fragment_client(other))
    for client in orphans:
        problem_of(client.post(f"/v1/fragments/{own}/report", json=report()), 401)
        problem_of(client.get(f"/v1/fragments/{own}/directive"), 401)
    assert api.stored_report(own) is None
    assert api.fragment_client(own).post(f"/v1/fragments/{own}/report", json=report()).status_code == 204


def test_a_fragments_token_opens_no_other_route(api: ApiUnderTest) -> None:
    fragment = api.add_fragment(api.submit()["id"])
    client = api.fragment_client(fragment)
    for method, path in BY_ROLE:
        problem_of(client.request(method, path_with(path), json=body_of(method, path)), 401)


class TestForegroundJobs:
    """The embedded cluster takes foreground jobs from an admin; any other scheduler takes none from here."""

    @pytest.fixture
    def local_api(self, data_dir: Path) -> ApiUnderTest:
        return ApiUnderTest(data_dir, scheduler=LocalCluster(LocalClusterSettings(nodes=3, load=0), data_dir))

    def test_an_admin_hands_one_in(self, local_api: ApiUnderTest) -> None:
        response = local_api.admin.post("/v1/cluster/foreground-jobs", json={"nodes": 2, "run_s": 5.0})
        assert response.status_code == 201
        assert response.json()["job"].startswith("user-")

    def test_the_same_one_is_handed_in_once(self, local_api: ApiUnderTest) -> None:
        path, job = "/v1/cluster/foreground-jobs", {"nodes": 2, "run_s": 5.0}
        first, again = (local_api.admin.post(path, json=job, headers={"Idempotency-Key": "a1"}) for _ in range(2))
        assert (again.status_code, again.json()) == (201, first.json())
        assert again.headers["Idempotency-Replayed"] == "true"
        other = local_api.admin.post(path, json=job, headers={"Idempotency-Key": "a2"})
        assert other.json() != first.json()
        problem_of(local_api.admin.post(path, json=job | {"nodes": 1}, headers={"Idempotency-Key": "a1"}), 409)

    def test_nobody_else_does(self, local_api: ApiUnderTest) -> None:
        for client in (local_api.viewer, local_api.user):
            problem_of(client.post("/v1/cluster/foreground-jobs", json={"nodes": 1, "run_s": 5.0}), 403)

    @each(
        ("request_", "line"),
        [
            ({"nodes": 0, "run_s": 5.0}, "nodes: Input should be greater than or equal to 1"),
            ({"nodes": 1, "run_s": 0}, "run_s: Input should be greater than 0"),
            ({"nodes": 1, "run_s": 1e9}, "run_s: Input should be less than or equal to 3600"),
            ({"nodes": 1}, "run_s: Field required"),
            ({"nodes": 1, "run_s": 5.0, "name": "x"}, "name: Extra inputs are not permitted"),
        ],
    )
    def test_one_that_makes_no_sense_is_refused(
        self, local_api: ApiUnderTest, request_: dict[str, object], line: str
    ) -> None:
        problem = problem_of(local_api.admin.post("/v1/cluster/foreground-jobs", json=request_), 422)
        assert problem["errors"] == [line]

    def test_one_that_could_never_start_is_refused(self, local_api: ApiUnderTest) -> None:
        response = local_api.admin.post(
            "/v1/cluster/foreground-jobs", json={"nodes": local_api.settings.local.nodes + 1, "run_s": 5.0}
        )
        assert "the embedded cluster has" in problem_of(response, 409)["detail"]

    def test_another_scheduler_takes_none_from_here(self, api: ApiUnderTest) -> None:
        response = api.admin.post("/v1/cluster/foreground-jobs", json={"nodes": 1, "run_s": 5.0})
        assert problem_of(response, 409)["detail"].startswith("foreground jobs are handed in to fake itself")
