"""The planner's turns: a new plan each, or, where none can be made, the word that says so."""

from __future__ import annotations

from oakum_service.config import Settings
from oakum_service.control import journal
from oakum_service.control.lease import LeaseHolder
from oakum_service.control.observe import Observed
from oakum_service.control.plan import pose, write_plan
from oakum_service.db.engine import Sessions
from oakum_solver.errors import ProblemError
from oakum_solver.solve import solve


class Planner:
    """Poses the problem of the moment, has it solved, and records the plan."""

    def __init__(self, settings: Settings, readers: Sessions, lease: LeaseHolder) -> None:
        self._settings = settings
        self._readers = readers
        self._lease = lease
        self._failing = False

    def plan(self, observed: Observed) -> int | None:
        """The number of the plan that holds from now on; None where there is no plan for this moment.

        An expression may have no value for a trainer of a kind that it was not tried on. The plan before then
        stays, which costs nodes and no training; its event is written once, until a plan is made again.
        """
        try:
            with self._readers.begin() as session:
                problem = pose(session, observed, self._settings)
            plan = solve(problem)
        except ProblemError as error:
            self._fail(error)
            return None
        self._failing = False
        with self._lease.writing() as session:
            return write_plan(session, plan, problem, observed).id

    def _fail(self, error: ProblemError) -> None:
        if not self._failing:
            with self._lease.writing() as session:
                text = f"{error}; until then trainers keep the nodes they have, and none are launched on others"
                journal.record(session, "plan.failed", "plan", text)
        self._failing = True
