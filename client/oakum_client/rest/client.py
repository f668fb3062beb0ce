"""The client, with a method for each call of the API."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx

from oakum_client.rest.address import find_address
from oakum_client.rest.connection import Connection
from oakum_client.rest.event_stream import events_after
from oakum_client.rest.long_lists import all_evaluations, all_holes, all_trainers
from oakum_service.api.schemas.audit import AuditLog
from oakum_service.api.schemas.cluster import ClusterView, NodeList
from oakum_service.api.schemas.events import Event, EventList
from oakum_service.api.schemas.forecast import ForecastRequest, ForecastView
from oakum_service.api.schemas.hold import HoldRequest, HoldView
from oakum_service.api.schemas.intervals import HoleList, Timeline
from oakum_service.api.schemas.ledger import Ledger
from oakum_service.api.schemas.node_uses import NodeUseSeries
from oakum_service.api.schemas.notices import NoticeList, NoticeTest, NoticeTested
from oakum_service.api.schemas.plans import PlanList, PlanView, WhatIfRequest, WhatIfView
from oakum_service.api.schemas.quotas import QuotaLimits, QuotaList, QuotaView
from oakum_service.api.schemas.series import EvaluationView, Series
from oakum_service.api.schemas.settings import ObjectiveList, SettingChange, SettingList, SettingView
from oakum_service.api.schemas.submissions import DryRunRequest, DryRunView
from oakum_service.api.schemas.trainers import (
    Explanation,
    LogText,
    PauseRequest,
    TrainerChange,
    TrainerList,
    TrainerView,
)
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec


class OakumClient:
    """One connection to the service. Every method makes one call, those that return a long list as many as it
    takes, and returns the API's document. Raises a `ClientError` where a call does not succeed.

    `ca_file` has the authorities to trust, as PEM; by default those of `OAKUM_CA_FILE`, else the system's.
    `transport` replaces the network, for tests. Texts, which users' code may have written, have
    nothing in them that a terminal would obey if they are `for_terminal`; else they are as the service tells them.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = 30.0,
        ca_file: Path | str | None = None,
        for_terminal: bool = False,
    ) -> None:
        self.address = find_address(url, token)
        if ca_file is not None:
            self.address = dataclasses.replace(self.address, ca_file=Path(ca_file))
        self._connection = Connection(self.address, timeout_s, transport, for_terminal=for_terminal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def cluster(self) -> ClusterView:
        """The cluster at a glance."""
        return self._connection.get("/v1/cluster", ClusterView)

    def hold(self, reason: str = "") -> HoldView:
        """Begin a hold: every fragment has to leave and none is launched. Returns the hold."""
        return self._connection.write("PUT", "/v1/hold", HoldView, HoldRequest(reason=reason))

    def held(self) -> HoldView:
        """Ask whether there is a hold, since when and by whom. Returns the hold's document, which also tells
        that there is none."""
        return self._connection.get("/v1/hold", HoldView)

    def resume(self) -> HoldView:
        """End the hold."""
        return self._connection.write("DELETE", "/v1/hold", HoldView)

    def notices(self, trainer: str | None = None) -> NoticeList:
        """The newest notices, of one trainer or of all."""
        return self._connection.get("/v1/notices", NoticeList, trainer=trainer)

    def try_recipient(self, recipient: NoticeTest) -> NoticeTested:
        """Send a test notice now."""
        return self._connection.write("POST", "/v1/notices/test", NoticeTested, recipient)

    def trainers(
        self, state: TrainerState | None = None, user: str | None = None, tag: str | None = None
    ) -> TrainerList:
        """All trainers, the newest last, or those in one state, of one user or with one tag."""
        return all_trainers(self._connection, state=state, user=user, tag=tag)

    def live_trainers(self, user: str | None = None, tag: str | None = None) -> TrainerList:
        """The trainers that have not ended, the newest last, or those of one user or with one tag."""
        return self._connection.get("/v1/trainers", TrainerList, live=True, user=user, tag=tag)

    def recent_trainers(self, num_ended: int) -> TrainerList:
        """The live trainers and the `num_ended` (1 to 500) newest of those that have ended, the newest last."""
        return self._connection.get("/v1/trainers", TrainerList, limit=num_ended)

    def submit(
        self, spec: TrainerSpec, idempotency_key: str | None = None, begin_from: str | None = None
    ) -> TrainerView:
        """Submit a trainer; returns its document. With `begin_from`, the name or id of a trainer that has ended,
        the new one begins from that one's newest checkpoint; with `NAME/STEP` or `NAME/best` from another of its
        checkpoints. Repeating the call with one `idempotency_key` submits once."""
        path = "/v1/trainers" + _beginning(begin_from)
        return self._connection.write("POST", path, TrainerView, spec, idempotency_key)

    def check(self, spec: TrainerSpec, begin_from: str | None = None) -> None:
        """Ask whether the service would accept this trainer now; submits nothing. Raises the `ApiError` with which
        it would refuse."""
        self._connection.command("POST", "/v1/trainers/check" + _beginning(begin_from), spec)

    def dry_run(self, spec: TrainerSpec, total_samples: int | None) -> DryRunView:
        """The plan if the trainer were submitted now; submits nothing."""
        document = spec.model_dump(mode="json", exclude_unset=True)
        request = DryRunRequest(spec=document, total_samples=total_samples)
        return self._connection.write("POST", "/v1/trainers/dry-run", DryRunView, request)

    def trainer(self, ref: str) -> TrainerView:
        """One trainer by id or name."""
        return self._connection.get(_trainer_path(ref), TrainerView)

    def change(self, ref: str, change: TrainerChange) -> TrainerView:
        """Change a live trainer's bounds, weight or priority, or any one's tags and notes. Returns its document
        after the change."""
        return self._connection.write("PATCH", _trainer_path(ref), TrainerView, change)

    def cancel(self, ref: str) -> TrainerView:
        """End a trainer. Raises `ApiError` (409) if it has ended already. Returns its document."""
        return self._connection.write("POST", _trainer_path(ref, "cancel"), TrainerView)

    def pause(self, ref: str, reason: str = "") -> TrainerView:
        """Pause a trainer until `unpause`. Raises `ApiError` (409) if it has ended. Returns its document."""
        return self._connection.write("PUT", _trainer_path(ref, "pause"), TrainerView, PauseRequest(reason=reason))

    def unpause(self, ref: str) -> TrainerView:
        """End a trainer's pause. Raises `ApiError` (409) if the trainer has ended. Returns its document."""
        return self._connection.write("DELETE", _trainer_path(ref, "pause"), TrainerView)

    def retry(self, ref: str) -> TrainerView:
        """Let a failed or cancelled trainer go on from its newest durable checkpoint. Returns its document.

        Raises `ApiError` (409) if it is live, has finished or has diverged, and while fragments of it are
        leaving.
        """
        return self._connection.write("POST", _trainer_path(ref, "retry"), TrainerView)

    def series(self, ref: str, limit: int = 600, *, from_at: float | None = None) -> Series:
        """A trainer's loss, throughput and size over time: the newest points, at most `limit` (5,000). With
        `from_at`, in Unix seconds, all points since then, neighbours put together where there are more."""
        return self._connection.get(_trainer_path(ref, "series"), Series, limit=limit, from_at=from_at)

    def node_use(self, ref: str, node: str | None = None) -> NodeUseSeries:
        """How much of a trainer's nodes was in use, as its agents have seen it: of one node, or of all."""
        return self._connection.get(_trainer_path(ref, "node-use"), NodeUseSeries, node=node)

    def evaluations(self, ref: str) -> list[EvaluationView]:
        """What a trainer's evaluations gave, in order of steps: all that the service keeps."""
        return all_evaluations(self._connection, _trainer_path(ref, "evaluations"))

    def logs(self, ref: str, tail: int = 200) -> LogText:
        """The last lines that a trainer's fragments wrote."""
        return self._connection.get(_trainer_path(ref, "logs"), LogText, tail=tail)

    def explain(self, ref: str) -> Explanation:
        """Why a trainer has the nodes it has."""
        return self._connection.get(_trainer_path(ref, "explain"), Explanation)

    def nodes(self) -> NodeList:
        """Every node as of the last snapshot."""
        return self._connection.get("/v1/nodes", NodeList)

    def holes(self, since_s: float = 3600) -> HoleList:
        """All holes of the last `since_s` seconds, in order of their starts."""
        return all_holes(self._connection, since_s)

    def timeline(self, since_s: float = 180) -> Timeline:
        """Nodes over time for the last `since_s` seconds."""
        return self._connection.get("/v1/timeline", Timeline, since_s=since_s)

    def plans(self, limit: int = 20) -> PlanList:
        """The newest plans."""
        return self._connection.get("/v1/plans", PlanList, limit=limit)

    def plan(self, number: int | None = None) -> PlanView:
        """One plan, by default the current one."""
        return self._connection.get(f"/v1/plans/{'current' if number is None else number}", PlanView)

    def preview(self, request: WhatIfRequest) -> WhatIfView:
        """The plan that would be made under these circumstances; has no effect."""
        return self._connection.write("POST", "/v1/plans/preview", WhatIfView, request)

    def recent_events(self, limit: int = 50) -> EventList:
        """The newest events."""
        return self._connection.get("/v1/events/recent", EventList, limit=limit)

    def audit(
        self,
        *,
        actor: str | None = None,
        subject: str | None = None,
        action: str | None = None,
        limit: int = 200,
        before: int | None = None,
    ) -> AuditLog:
        """The newest acts that the audit log has for the caller, the newest first, those of one actor, subject or
        action where these are given; with `before`, only those with lower ids."""
        asked = {"actor": actor, "subject": subject, "action": action, "limit": limit, "before": before}
        return self._connection.get("/v1/audit", AuditLog, **asked)

    def ledger(self, *, month: str | None = None, months: int = 1, user: str | None = None) -> Ledger:
        """What users' trainers had in `months` months, of which `month` (`2026-11`) is the last, by default the
        present one; with `user`, of this user only."""
        return self._connection.get("/v1/ledger", Ledger, month=month, months=months, user=user)

    def quotas(self) -> QuotaList:
        """The quotas of users with live trainers or limits of their own; the caller's own for others than
        administrators."""
        return self._connection.get("/v1/quotas", QuotaList)

    def quota(self, user: str) -> QuotaView:
        """One user's quota and what is used of it, storage included."""
        return self._connection.get(_quota_path(user), QuotaView)

    def set_quota(self, user: str, limits: QuotaLimits) -> QuotaView:
        """Give a user limits in place of those set before. Returns the user's quota."""
        return self._connection.write("PUT", _quota_path(user), QuotaView, limits)

    def clear_quota(self, user: str) -> None:
        """Take back the limits set for a user."""
        self._connection.command("DELETE", _quota_path(user))

    def settings(self) -> SettingList:
        """The settings that may be changed while the service runs."""
        return self._connection.get("/v1/settings", SettingList)

    def change_setting(self, name: str, value: str | float | None) -> SettingView:
        """Change a setting from the next plan on. Returns it as it is then."""
        return self._connection.write("PUT", _setting_path(name), SettingView, SettingChange(value=value))

    def reset_setting(self, name: str) -> SettingView:
        """Let the value hold again that the service was started with. Returns the setting as it is then."""
        return self._connection.write("DELETE", _setting_path(name), SettingView)

    def forecast(self) -> ForecastView:
        """How long nodes are expected to stay idle, and what that is learnt from."""
        return self._connection.get("/v1/forecast", ForecastView)

    def tell_forecast(self, request: ForecastRequest) -> ForecastView:
        """Tell how long nodes stay idle here. Returns what is expected then."""
        return self._connection.write("PUT", "/v1/forecast", ForecastView, request)

    def withdraw_forecast(self) -> ForecastView:
        """Let only what the service has seen count. Returns what is expected then."""
        return self._connection.write("DELETE", "/v1/forecast", ForecastView)

    def objectives(self) -> ObjectiveList:
        """The objectives known by name, what expressions may use, and the objective that holds now."""
        return self._connection.get("/v1/objectives", ObjectiveList)

    def events(self, after: int | None = None, *, give_up_s: float = 60.0) -> Iterator[Event]:
        """Events as they happen, beginning after the event `after`, without end.

        A broken stream is resumed where it broke; `ServiceUnreachable` is raised when this has failed for
        `give_up_s` seconds. At the start an unreachable service raises it at once.
        """
        return events_after(self._connection, after, give_up_s)


def _beginning(trainer: str | None) -> str:
    return "" if trainer is None else f"?begin_from={quote(trainer, safe='')}"


def _setting_path(name: str) -> str:
    return f"/v1/settings/{quote(name, safe='')}"


def _quota_path(user: str) -> str:
    return f"/v1/quotas/{quote(user, safe='')}"


def _trainer_path(ref: str, part: str = "") -> str:
    path = f"/v1/trainers/{quote(ref, safe='')}"
    return f"{path}/{part}" if part else path
