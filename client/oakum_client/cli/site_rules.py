"""How a site plans and what a rescale costs there, for `oakum replay --as`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oakum_client.cli.app import CommandError

if TYPE_CHECKING:
    from oakum_service.api.schemas.settings import PlanningView
    from oakum_solver.exploration import Exploration
    from oakum_solver.planning import PlanningRules

SERVICE = "service"
"""The word for the service that commands talk to."""


@dataclass(frozen=True)
class SiteRules:
    """The rules by which a site's plans are made, and its costs in seconds."""

    rules: PlanningRules
    stall_s: float
    startup_s: float
    exploration: Exploration
    """How trainers' curves are learnt."""


def site_rules(source: str) -> SiteRules:
    """The rules of a running service (`service` or its URL), or those that a configuration file (.toml) asks for.
    Raises `CommandError` where there is no such file, it cannot be used, or the service does not answer."""
    if source == SERVICE or "://" in source:
        return _of_service(source)
    return _of_file(Path(source))


def _of_service(source: str) -> SiteRules:
    from oakum_client.rest.client import OakumClient
    from oakum_client.rest.errors import ClientError
    from oakum_solver.exploration import Exploration

    try:
        with OakumClient(for_terminal=True) if source == SERVICE else OakumClient(source) as client:
            planning = client.settings().planning
    except ClientError as error:
        raise CommandError(f"--as {source}: {error}") from error
    if planning is None:
        raise CommandError(f"--as {source}: this service is too old to tell its rules; name a file")
    exploration = Exploration(planning.explore_share)
    return SiteRules(_rules_of(planning), planning.stall_s, planning.start_up_s, exploration)


def _rules_of(planning: PlanningView) -> PlanningRules:
    from oakum_solver.guard import StarvationGuard
    from oakum_solver.objectives import parse_objective
    from oakum_solver.planning import PlanningRules

    guard = StarvationGuard()
    if planning.starvation_guard_s is not None:
        guard = StarvationGuard(planning.starvation_guard_s, planning.starvation_quantum_s)
    return PlanningRules(
        objective=parse_objective(planning.objective),
        look_ahead_s=planning.look_ahead_s,
        groups=planning.groups,
        guard=guard,
        user_cap=planning.user_cap,
        milp_solver=planning.milp_solver,
        time_limit_s=planning.solver_limit_s,
    )


def _of_file(path: Path) -> SiteRules:
    from oakum_service.config import Settings
    from oakum_service.config_file import VARIABLE
    from oakum_service.errors import ConfigurationError
    from oakum_solver.exploration import Exploration

    if not path.is_file():
        raise CommandError(
            f"--as {path}: there is no such file: give a configuration file (.toml), the URL of a service, or the "
            f"word {SERVICE!r}"
        )
    chosen = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(path.absolute())
    try:
        settings = Settings()
    except (ConfigurationError, ValueError) as error:
        raise CommandError(f"--as {path}: {error}") from error
    finally:
        # What else the command reads of the settings, as of Slurm's accounting, is this machine's.
        del os.environ[VARIABLE]
        if chosen is not None:
            os.environ[VARIABLE] = chosen
    exploration = Exploration(settings.explore_share)
    return SiteRules(settings.planning_rules, settings.stall_s, settings.start_up_s, exploration)
