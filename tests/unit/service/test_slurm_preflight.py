"""What `oakum check` makes of a cluster's configuration, from what Slurm 22.05 wrote of a real one."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_service.config import Settings, SlurmSettings
from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.configuration import read_config, read_partitions, read_rows, seconds
from oakum_service.schedulers.slurm.preflight import database, node
from oakum_service.schedulers.slurm.preflight.checks import has_errors, judge
from oakum_service.schedulers.slurm.preflight.facts import QOS_FIELDS, SiteFacts, submit_options
from oakum_service.schedulers.slurm.preflight.finding import Level, PreflightFinding

CONFIG = """\
Configuration data as of 2026-11-21T18:05:01
AccountingStorageEnforce = associations,limits,qos
AccountingStorageTRES   = cpu,mem,energy,node,billing,fs/disk,vmem,pages
AccountingStorageType   = accounting_storage/slurmdbd
AuthInfo                = socket=/run/munge/munge.socket.2
AuthType                = auth/munge
Epilog                  = (null)
EpilogSlurmctld         = /etc/slurm/oakum/epilog-slurmctld
KillWait                = 30 sec
MCSPlugin               = mcs/none
MessageTimeout          = 10 sec
MinJobAge               = 300 sec
PreemptMode             = CANCEL
PreemptType             = preempt/partition_prio
PreemptExemptTime       = 00:00:00
PrivateData             = none
PrologEpilogTimeout     = 30
ProctrackType           = proctrack/cgroup
PrologSlurmctld         = /etc/slurm/oakum/prolog-slurmctld
SchedulerParameters     = bf_interval=30,bf_min_prio_reserve=1000
SelectType              = select/cons_tres
SlurmctldHost[0]        = head(10.0.0.1)
SLURM_VERSION           = 22.05.8
TaskPluginParam         = (null type)

Slurmctld(primary) at head is UP
"""
PARTITIONS = (
    "PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=YES QoS=N/A ExclusiveUser=NO "
    "GraceTime=0 MaxTime=UNLIMITED Nodes=n[001-008] PriorityTier=100 OverSubscribe=NO PreemptMode=OFF "
    "State=UP TotalCPUs=16 TotalNodes=8 TRES=cpu=16,mem=500G,node=8,billing=16\n"
    "PartitionName=fill AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO QoS=N/A ExclusiveUser=NO "
    "GraceTime=60 MaxTime=1-00:00:00 Nodes=n[001-008] PriorityTier=1 OverSubscribe=NO PreemptMode=CANCEL "
    "State=UP TotalCPUs=16 TotalNodes=8 TRES=cpu=16,mem=500G,node=8,billing=16\n"
    "PartitionName=gpu QoS=N/A Nodes=g[1-2] PriorityTier=1 PreemptMode=OFF State=UP TotalNodes=2\n"
)
QOS = "normal|fill|cluster||00:00:00||||||\nfill||cancel||00:01:00|20|||node=8||\n"
URL = "http://head:8470"


def site(
    config: dict[str, str] | None = None,
    fill: dict[str, str] | None = None,
    main: dict[str, str] | None = None,
    qos: dict[str, dict[str, str]] | None = None,
    **others: Any,
) -> SiteFacts:
    """The facts of a cluster without findings, with some of them changed."""
    partitions = read_partitions(PARTITIONS)
    partitions["fill"] |= fill or {}
    partitions["main"] |= main or {}
    rows = {row["Name"]: row | (qos or {}).get(row["Name"], {}) for row in read_rows(QOS, QOS_FIELDS)}
    return SiteFacts(
        **(
            {
                "config": read_config(CONFIG) | (config or {}),
                "partitions": partitions,
                "qos": rows,
                "admin_level": "None",
            }
            | others
        )
    )


def complaints(facts: SiteFacts, user: str = "oakum", **settings: Any) -> list[tuple[str, str]]:
    """(level, subject) of each finding that should be changed."""
    return [
        (str(finding.level), finding.subject)
        for finding in judge(facts, _settings(**settings), user)
        if finding.level is not Level.OK
    ]


def finding(subject: str, facts: SiteFacts, **settings: Any) -> PreflightFinding:
    """The one about the subject."""
    return next(found for found in judge(facts, _settings(**settings), "oakum") if found.subject == subject)


def _settings(**settings: Any) -> Settings:
    return Settings(slurm=SlurmSettings(**({"partition": "fill"} | settings)))


def test_a_fit_cluster_has_nothing_to_change() -> None:
    assert complaints(site()) == []
    assert complaints(site({"PreemptType": "preempt/qos"}), preemption="qos", qos="fill") == []


@each(
    ("config", "expected"),
    [
        ({"SLURM_VERSION": "20.11.9"}, ("warning", "version")),
        ({"SLURM_VERSION": "26.05.0"}, ("note", "version")),
        ({"SLURM_VERSION": "soon"}, ("error", "version")),
        ({"SelectType": "select/cray_aries"}, ("warning", "SelectType")),
        ({"AuthType": "auth/none"}, ("error", "AuthType")),
        ({"ProctrackType": "proctrack/linuxproc"}, ("warning", "ProctrackType")),
        ({"ProctrackType": "proctrack/pgid"}, ("warning", "ProctrackType")),
        ({"AccountingStorageType": "accounting_storage/none"}, ("warning", "accounting")),
        ({"AccountingStorageEnforce": "associations"}, ("note", "accounting")),
        ({"PrivateData": "accounts,jobs"}, ("error", "PrivateData")),
        ({"PrologSlurmctld": "(null)"}, ("warning", "hooks")),
        ({"PrologSlurmctld": "(null)", "EpilogSlurmctld": "(null)"}, ("note", "hooks")),
        ({"PrologEpilogTimeout": "65534"}, ("warning", "PrologEpilogTimeout")),
        ({"PreemptType": "preempt/none"}, ("error", "PreemptType")),
        ({"PreemptExemptTime": "00:10:00"}, ("error", "PreemptExemptTime")),
        ({"MinJobAge": "30 sec"}, ("warning", "MinJobAge")),
        ({"MCSPlugin": "mcs/user"}, ("warning", "MCSPlugin")),
        ({"KillWait": "300 sec", "MinJobAge": "600 sec"}, ("warning", "KillWait")),
        ({"SchedulerParameters": "(null)"}, ("note", "bf_min_prio_reserve")),
        ({"PreemptParameters": "youngest_first,min_exempt_priority=500"}, ("warning", "min_exempt_priority")),
        ({"SuspendTime": "300 sec", "SuspendProgram": "/usr/sbin/off"}, ("note", "power saving")),
    ],
)
def test_each_setting_of_slurm_conf_is_told_by_its_name(config: dict[str, str], expected: tuple[str, str]) -> None:
    assert complaints(site(config)) == [expected]


@each(
    ("fill", "expected"),
    [
        ({"State": "DRAIN"}, ("error", "partition")),
        ({"MaxTime": "01:00:00"}, ("error", "MaxTime")),
        ({"PreemptMode": "OFF"}, ("error", "PreemptMode")),
        ({"PreemptMode": "GANG,SUSPEND"}, ("error", "PreemptMode")),
        ({"PreemptMode": "REQUEUE"}, ("warning", "PreemptMode")),
        ({"GraceTime": "0"}, ("warning", "GraceTime")),
        ({"GraceTime": "5"}, ("warning", "GraceTime")),
        ({"ExclusiveUser": "YES"}, ("error", "ExclusiveUser")),
        ({"OverSubscribe": "FORCE:4"}, ("warning", "OverSubscribe")),
        ({"PriorityTier": "100"}, ("error", "PriorityTier")),
        ({"PriorityTier": "200"}, ("error", "PriorityTier")),
        ({"Nodes": "n[001-"}, ("error", "PriorityTier")),
        ({"Nodes": "x1"}, ("note", "PriorityTier")),
    ],
)
def test_each_option_of_the_partition_is_told_by_its_name(fill: dict[str, str], expected: tuple[str, str]) -> None:
    assert complaints(site(fill=fill)) == [expected]


def test_another_partition_whose_jobs_would_wait_for_ours_is_told_by_its_name() -> None:
    told = finding("ExclusiveUser", site(main={"ExclusiveUser": "YES"}))
    assert (told.level, told.change) == (Level.WARNING, "slurm.conf: PartitionName=main ... ExclusiveUser=NO")
    assert told.found == "YES in main: Slurm preempts no job for one of another user, so its nodes are left out"
    assert complaints(site(main={"ExclusiveUser": "YES", "Nodes": "x1"})) == [("note", "PriorityTier")]


@each(
    ("slots", "config", "fill", "expected"),
    [
        ("node", {}, {}, [("note", "slots")]),
        ("node", {}, {"OverSubscribe": "EXCLUSIVE"}, []),
        ("gpu", {}, {}, []),
        ("gpu", {}, {"OverSubscribe": "EXCLUSIVE"}, [("note", "slots")]),
        ("gpu", {}, {"ExclusiveTopo": "YES"}, [("note", "slots")]),
        ("gpu", {"SelectType": "select/linear"}, {}, [("error", "slots")]),
        ("gpu", {"SelectTypeParameters": "CR_CPU"}, {}, [("warning", "memory")]),
        ("gpu", {"ConstrainDevices": "no"}, {}, [("warning", "devices")]),
        ("gpu", {"GresTypes": "gpu,mps"}, {}, [("note", "shards")]),
        ("gpu", {"GresTypes": "craynetwork"}, {}, []),
    ],
)
def test_what_a_fragment_gets_of_a_node_with_gpus_is_checked(
    slots: str, config: dict[str, str], fill: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    gpus = {"GresTypes": "gpu", "SelectTypeParameters": "CR_CORE_MEMORY", "ConstrainDevices": "yes"}
    assert complaints(site(gpus | config, fill), slots=slots) == expected


@each(
    ("main", "expected"),
    [
        (
            {"OverSubscribe": "EXCLUSIVE"},
            "a fragment has all of n[001-008], where jobs are of main (OverSubscribe=EXCLUSIVE)",
        ),
        (
            {"ExclusiveTopo": "YES", "Nodes": "n[003-005],x1"},
            "a fragment has all of n[003-005], where jobs are of main (ExclusiveTopo=YES)",
        ),
        ({"OverSubscribe": "EXCLUSIVE", "Nodes": "x1"}, None),
    ],
)
def test_where_nodes_are_given_as_a_whole_beside_others_in_parts_is_told(
    main: dict[str, str], expected: str | None
) -> None:
    gpus = {"GresTypes": "gpu", "SelectTypeParameters": "CR_CORE_MEMORY", "ConstrainDevices": "yes"}
    told = [one for one in judge(site(gpus, main=main), _settings(slots="gpu"), "oakum") if one.subject == "slots"]
    assert [one.found for one in told[1:]] == ([] if expected is None else [expected])


@each(
    ("qos", "expected"),
    [
        ({"normal": {"Preempt": "low"}}, ("error", "QOS")),
        ({"fill": {"PreemptMode": "suspend"}}, ("error", "PreemptMode")),
        ({"fill": {"GraceTime": "00:00:00"}}, ("warning", "GraceTime")),
        ({"fill": {"PreemptExemptTime": "00:05:00"}}, ("error", "PreemptExemptTime")),
        ({"fill": {"MaxSubmitPU": "4"}}, ("warning", "MaxSubmitJobs")),
        ({"fill": {"MaxSubmitPU": ""}}, ("note", "MaxSubmitJobs")),
        ({"fill": {"GrpTRES": ""}}, ("note", "GrpTRES")),
        ({"fill": {"MaxWall": "01:00:00"}}, ("error", "MaxWall")),
    ],
)
def test_each_field_of_the_qos_is_told_by_its_name(
    qos: dict[str, dict[str, str]], expected: tuple[str, str]
) -> None:
    facts = site({"PreemptType": "preempt/qos"}, qos=qos)
    assert complaints(facts, preemption="qos", qos="fill") == [expected]


@each(
    ("low", "expected"),
    [
        ("low|fill|cancel||00:01:00|20|||node=8||", [("error", "QOS")]),
        ("low||cancel||00:01:00|20|||node=8||", []),
        ("low||cancel||00:00:10|20|||node=8||", [("warning", "QOS")]),
        ("other||cancel||00:01:00|20|||node=8||", [("error", "QOS")]),
    ],
)
def test_a_qos_that_specs_may_ask_for_gives_way_as_our_own_does(low: str, expected: list[tuple[str, str]]) -> None:
    preempting = "fill" if low.startswith("low|fill") else "fill,low"
    rows = read_rows(QOS.replace("normal|fill", f"normal|{preempting}") + low + "\n", QOS_FIELDS)
    facts = site({"PreemptType": "preempt/qos"})
    facts = dataclasses.replace(facts, qos={row["Name"]: row for row in rows})
    assert complaints(facts, preemption="qos", qos="fill", allow_qos=["fill", "low"]) == expected


def test_a_qos_that_follows_the_cluster_is_judged_by_the_cluster() -> None:
    config = {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
    facts = site(config, qos={"fill": {"PreemptMode": "cluster"}})
    assert complaints(facts, preemption="qos", qos="fill") == [("warning", "PreemptMode")]


def test_a_qos_that_is_missing_or_unknown_is_an_error() -> None:
    facts = site({"PreemptType": "preempt/qos"})
    assert complaints(facts, preemption="qos") == [("error", "QOS")]
    assert complaints(facts, preemption="qos", qos="idle") == [("error", "QOS")]
    silent = SiteFacts(facts.config, facts.partitions, None, None, unanswered={"sacctmgr": "connection refused"})
    assert complaints(silent, preemption="qos", qos="fill") == [("warning", "accounting"), ("error", "QOS")]


def test_without_a_partition_there_is_one_error_and_no_guess() -> None:
    assert complaints(site(), partition="") == [("error", "partition")]
    assert complaints(site(), partition="idle") == [("error", "partition")]


def test_without_preemption_the_grace_is_no_matter() -> None:
    facts = site({"PreemptType": "preempt/none", "PreemptMode": "OFF"}, {"GraceTime": "0", "PreemptMode": "OFF"})
    assert complaints(facts, preemption="none") == [("warning", "PreemptType")]
    assert complaints(site(), preemption="none") == [("note", "PreemptType")]


def test_equal_tiers_are_right_where_the_qos_decides() -> None:
    facts = site({"PreemptType": "preempt/qos"}, {"PriorityTier": "100"})
    assert complaints(facts, preemption="qos", qos="fill") == []


def test_whoever_may_see_everything_is_not_told_of_private_data() -> None:
    facts = site({"PrivateData": "jobs"}, admin_level="Operator")
    assert complaints(facts) == [("warning", "account")]
    assert complaints(site({"PrivateData": "jobs"}), state="push") == []


def test_root_is_warned_of() -> None:
    assert complaints(site(admin_level="Administrator"), user="root") == [("warning", "account")]


def test_what_sbatch_refuses_is_told_in_its_words() -> None:
    found = finding("submission", site(test_only="sbatch: error: Invalid account"))
    assert (found.level, found.found) == (Level.ERROR, "sbatch: error: Invalid account")


def test_a_grace_longer_than_the_partitions_is_an_error() -> None:
    assert complaints(site(), grace_s=90.0) == [("error", "GraceTime")]


@each(
    ("subject", "facts", "change"),
    [
        ("GraceTime", site(fill={"GraceTime": "0"}), "slurm.conf: PartitionName=fill ... GraceTime=60"),
        (
            "PreemptMode",
            site(fill={"PreemptMode": "OFF"}),
            "slurm.conf: PartitionName=fill ... PreemptMode=CANCEL",
        ),
        ("PriorityTier", site(main={"PriorityTier": "1"}), "slurm.conf: PartitionName=main ... PriorityTier=100"),
        (
            "PriorityTier",
            site(fill={"PriorityTier": "65533"}),
            "slurm.conf: PartitionName=fill ... PriorityTier=1",
        ),
        ("partition", site(fill={"State": "DOWN"}), "scontrol update PartitionName=fill State=UP"),
        ("MaxTime", site(fill={"MaxTime": "01:00:00"}), "OAKUM_SLURM_TIME_LIMIT_S=3600"),
        (
            "PreemptType",
            site({"PreemptType": "preempt/qos"}),
            "slurm.conf: PreemptType=preempt/partition_prio, or OAKUM_SLURM_PREEMPTION=qos",
        ),
    ],
)
def test_the_line_to_change_is_exact(subject: str, facts: SiteFacts, change: str) -> None:
    assert finding(subject, facts).change == change


@each(
    ("config", "fill", "settings", "expected"),
    [
        ({"SuspendProgram": "(null)"}, {}, {}, []),
        ({"SuspendTime": "INFINITE"}, {}, {}, []),
        ({"SuspendTime": "NONE"}, {"SuspendTime": "60"}, {}, [("note", "power saving")]),
        ({}, {}, {"powered_down_are_holes": True}, [("warning", "power saving")]),
        ({}, {}, {"powered_down_are_holes": True, "shortest_s": 700.0}, []),
    ],
)
def test_power_saving_is_told_where_it_costs_holes(
    config: dict[str, str], fill: dict[str, str], settings: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    saving = {"SuspendTime": "300 sec", "SuspendProgram": "/usr/sbin/off", "ResumeTimeout": "600 sec"}
    assert complaints(site(saving | config, fill), **settings) == expected


def test_a_pooler_before_the_database_is_told() -> None:
    assert (database.judge(pooled=False).level, database.judge(pooled=True).level) == (Level.OK, Level.NOTE)
    assert database.check(Settings(database_url="sqlite:///x.db")) == []
    (found,) = database.check(Settings(database_url="postgresql://127.0.0.1:x/db"))
    assert (found.level, found.subject) == (Level.ERROR, "database")
    assert "postgresql://user@host1:5432,host2:5432/db" in found.found


def test_only_errors_fail_a_check() -> None:
    assert not has_errors(judge(site(fill={"GraceTime": "0"}), _settings(), "oakum"))
    assert has_errors(judge(site(fill={"PreemptMode": "OFF"}), _settings(), "oakum"))


@each(
    ("text", "expected"),
    [
        ("30", 30.0),
        ("30 sec", 30.0),
        ("2 min", 120.0),
        ("00:00:30", 30.0),
        ("01:30", 90.0),
        ("2-01:00:00", 176_400.0),
        ("UNLIMITED", math.inf),
        ("", None),
        ("(null)", None),
    ],
)
def test_slurms_durations_are_read(text: str, expected: float | None) -> None:
    assert seconds(text) == expected


def test_what_is_no_configuration_is_an_error() -> None:
    with pytest.raises(PayloadError, match="SLURM_VERSION"):
        read_config("slurm_load_ctl_conf error: Unable to contact slurm controller")


def test_values_keep_their_equals_signs() -> None:
    facts = site()
    assert facts.value("AuthInfo") == "socket=/run/munge/munge.socket.2"
    assert facts.value("SchedulerParameters") == "bf_interval=30,bf_min_prio_reserve=1000"
    assert facts.partitions["fill"]["TRES"] == "cpu=16,mem=500G,node=8,billing=16"


def test_the_job_of_the_check_asks_for_what_fragments_ask_for() -> None:
    settings = SlurmSettings(partition="fill", qos="low", options={"gres": "gpu:4", "qos": "other"})
    assert submit_options(settings) == [
        "--nodes=1",
        "--exclusive",
        "--partition=fill",
        "--qos=low",
        "--gres=gpu:4",
    ]


def told(**failures: str) -> dict[str, Any]:
    """What the job on the node said, with some attempts failed."""
    found = {
        name: {"found": "there", "error": failures.get(name, "")}
        for name in ("read", "write", "worker", "torch", "launcher")
    }
    return {"host": "n001", **found, "url": {"found": "200", "error": failures.get("url", "")}}


@each(
    ("failed", "subject"),
    [
        ("read", "shared folder"),
        ("write", "shared folder"),
        ("worker", "oakum_worker"),
        ("torch", "torch"),
        ("url", "service"),
        ("launcher", "accounts"),
    ],
)
def test_what_a_node_lacks_is_one_error_with_its_reason(failed: str, subject: str) -> None:
    findings = node.judge(told(**{failed: "OSError: no"}), Path("/shared/oakum"), URL, replied=True)
    (found,) = [found for found in findings if found.level is not Level.OK]
    assert (found.level, found.subject) == (Level.ERROR, subject)
    assert "OSError: no" in found.found
    assert found.change != ""


def test_a_folder_that_only_the_node_sees_is_not_shared() -> None:
    findings = node.judge(told(), Path("/shared/oakum"), URL, replied=False)
    assert [found.subject for found in findings if found.level is Level.ERROR] == ["shared folder"]


@pytest.mark.parametrize("age", ["40 sec", "0 sec"])
def test_jobs_that_are_remembered_long_enough_or_for_ever_are_fine(age: str) -> None:
    assert finding("MinJobAge", site({"MinJobAge": age})).level is Level.OK
