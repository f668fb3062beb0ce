"""The planner: makes a new plan in each turn, or records why none can be made."""

from __future__ import annotations

from oakum_service import clock, instruments
from oakum_service.config import Settings
from oakum_service.control import fragment_slots
from oakum_service.control.observe import Observation
from oakum_service.control.plan import pose, write_plan
from oakum_service.db import event_log
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import LeaseHolder
from oakum_service.orders.live_settings import current
from oakum_service.orders.quotas import NodeHours
from oakum_solver.errors import ProblemError
from oakum_solver.plan import Plan
from oakum_solver.solve import solve


class Planner:
    """Poses the allocation problem of the moment, has the solver solve it, and records the plan."""

    def __init__(self, settings: Settings, readers: Sessions, lease: LeaseHolder) -> None:
        self._settings = settings
        self._readers = readers
        self._lease = lease
        self._failing = False
        self._node_hours = NodeHours()

    def plan(self, observed: Observation) -> int | None:
        """Solve the problem that the observation poses, and record the plan if it decides something new.

        Returns the number of the plan in force after that; None if no plan can be made now.

        An administrator's expression may have no value for a kind of trainer that it was not tested with. Then the
        earlier plan stays in force: running trainers keep their nodes, others get none. An event says so, once,
        until a plan can be made again.
        """
        with self._readers.begin() as session:
            settings = current(session, self._settings)
            due = fragment_slots.due(session, observed.snapshot, settings)
        if due:
            with self._lease.writing() as session:
                fragment_slots.store(session, due)
        try:
            with self._readers.begin() as session:
                problem = pose(session, observed, settings, clock.now(), node_hours=self._node_hours)
            plan = solve(problem)
        except ProblemError as error:
            self._fail(error)
            return None
        self._failing = False
        _count(plan)
        with self._lease.writing() as session:
            # The solver took its time: the plan is made now.
            return write_plan(session, plan, problem, observed, clock.now()).id

    def _fail(self, error: ProblemError) -> None:
        instruments.PLAN_FAILURES.inc()
        if not self._failing:
            with self._lease.writing() as session:
                text = f"{error}; until then trainers keep the nodes they have, and none are launched on others"
                event_log.record(session, "plan.failed", "plan", text)
        self._failing = True


def _count(plan: Plan) -> None:
    """Count the plan in the metrics."""
    instruments.SOLVE_S.observe(plan.solve_s)
    instruments.SOLVE_GAP.set(plan.gap)
    instruments.PLANS.labels(str(plan.optimal).lower()).inc()
