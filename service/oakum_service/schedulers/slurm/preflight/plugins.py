"""Checks Slurm's version and plugins, and what Slurm lets us see and tells us."""

from __future__ import annotations

from oakum_service.config import SlurmSettings
from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.configuration import seconds
from oakum_service.schedulers.slurm.preflight.facts import SiteFacts
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding, error, note, ok, warning
from oakum_service.schedulers.slurm.reading.versions import SlurmVersion

_OLDEST, _NEWEST = (21, 8), (25, 11)
_HOOKS = ("PrologSlurmctld", "EpilogSlurmctld")
_NO_TIMEOUT_S = 65534
_ESCAPED = {
    "linuxproc": "what user code starts by `setsid`, or any process whose parent is gone,",
    "pgid": "what user code starts by `setsid`, or any process in a group of its own,",
}
"""How a process leaves its job where Slurm follows processes by their parents, or by their groups."""
_PRIVILEGED = frozenset({"Operator", "Administrator"})


def check(facts: SiteFacts, settings: SlurmSettings, user: str) -> list[PreflightFinding]:
    """Check what holds for the whole cluster. Returns the findings."""
    return [
        _version(facts),
        _selection(facts),
        _authentication(facts),
        *_processes(facts),
        *_accounting(facts),
        *_privacy(facts, settings, user),
        *_account(facts, user),
        *_hooks(facts),
    ]


def _version(facts: SiteFacts) -> PreflightFinding:
    given = facts.value("SLURM_VERSION")
    try:
        release = SlurmVersion.parse(given, "`scontrol show config`").release
    except PayloadError as failure:
        return error("version", str(failure))
    if release < _OLDEST:
        return warning("version", f"Slurm {given}: older than 21.08, the oldest that Oakum is tested with")
    if release > _NEWEST:
        return note("version", f"Slurm {given}: newer than 25.11, the newest that Oakum is tested with")
    return ok("version", f"Slurm {given}")


def _selection(facts: SiteFacts) -> PreflightFinding:
    plugin = facts.value("SelectType")
    if plugin.removeprefix("select/") in ("cons_tres", "cons_res", "linear"):
        return ok("SelectType", plugin)
    return warning(
        "SelectType", f"{plugin}: Oakum is not tested with it", "slurm.conf: SelectType=select/cons_tres"
    )


def _authentication(facts: SiteFacts) -> PreflightFinding:
    plugin = facts.value("AuthType")
    if plugin == "auth/none":
        change = "slurm.conf: AuthType=auth/munge"
        return error("AuthType", "auth/none: anybody may act as anybody, our fragments' jobs included", change)
    return ok("AuthType", plugin)


def _processes(facts: SiteFacts) -> list[PreflightFinding]:
    plugin = facts.value("ProctrackType").removeprefix("proctrack/")
    if plugin not in _ESCAPED:
        return [ok("ProctrackType", f"proctrack/{plugin}")] if plugin else []
    found = (
        f"proctrack/{plugin}: {_ESCAPED[plugin]} lives on when the fragment's job has ended, and keeps memory and "
        "GPUs of a node that Slurm gives to others"
    )
    change = "slurm.conf: ProctrackType=proctrack/cgroup, then restart slurmctld and every slurmd"
    return [warning("ProctrackType", found, change)]


def _accounting(facts: SiteFacts) -> list[PreflightFinding]:
    storage = facts.value("AccountingStorageType")
    if storage != "accounting_storage/slurmdbd":
        return [
            warning(
                "accounting",
                f"{storage or 'none'}: there is no sacct to audit our jobs with, and no QOS can cap them",
                "slurm.conf: AccountingStorageType=accounting_storage/slurmdbd",
            )
        ]
    if facts.qos is None:
        return [warning("accounting", f"slurmdbd does not answer: {facts.unanswered.get('sacctmgr', '')}")]
    enforced = facts.value("AccountingStorageEnforce")
    if "limits" not in enforced and "safe" not in enforced:
        change = "slurm.conf: AccountingStorageEnforce=associations,limits,qos"
        return [
            ok("accounting", storage),
            note("accounting", "limits are recorded, not enforced: no QOS caps our jobs", change),
        ]
    return [ok("accounting", f"{storage}, enforcing {enforced}")]


def _privacy(facts: SiteFacts, settings: SlurmSettings, user: str) -> list[PreflightFinding]:
    hidden = {word for word in facts.value("PrivateData").split(",") if word in ("jobs", "nodes", "reservations")}
    if not hidden:
        return [ok("PrivateData", "jobs, nodes and reservations are there for us to see")]
    what = " and ".join(sorted(hidden))
    if settings.state == "push" or user == "root" or facts.admin_level in _PRIVILEGED:
        return [ok("PrivateData", f"{what} are hidden from other users, but not from the account that reads them")]
    return [
        error(
            "PrivateData",
            f"{what} of others are hidden from {user}: foreground jobs would be overlooked",
            "run `oakum collect` under an account with AdminLevel=Operator, and set OAKUM_SLURM_STATE=push",
        )
    ]


def _account(facts: SiteFacts, user: str) -> list[PreflightFinding]:
    if user == "root":
        return [warning("account", "this is root", "run the service under an account of its own")]
    if facts.admin_level in _PRIVILEGED:
        return [
            warning(
                "account",
                f"{user} has AdminLevel={facts.admin_level}: a fault of ours could touch others' jobs",
                f"sacctmgr modify user {user} set AdminLevel=None",
            )
        ]
    return [ok("account", f"{user} has no AdminLevel")]


def _hooks(facts: SiteFacts) -> list[PreflightFinding]:
    scripts = {name: facts.value(name) for name in _HOOKS}
    if not any(scripts.values()):
        found = "none: the start or end of a job is noticed only at the next poll"
        return [note("hooks", found, "oakum hooks install prints the lines for slurm.conf")]
    found = ", ".join(f"{name}={script}" for name, script in scripts.items() if script)
    missing = [name for name, script in scripts.items() if not script]
    findings = [
        warning("hooks", f"{found}, but no {missing[0]}", "oakum hooks install prints the lines for slurm.conf")
        if missing
        else ok("hooks", f"{found}; whether Slurm runs them: below, and oakum hooks status")
    ]
    if (seconds(facts.value("PrologEpilogTimeout")) or _NO_TIMEOUT_S) >= _NO_TIMEOUT_S:
        found = "not set: a prolog that hangs holds its job for ever"
        findings.append(warning("PrologEpilogTimeout", found, "slurm.conf: PrologEpilogTimeout=30"))
    return findings
