"""The metrics that the service counts and measures about itself, for Prometheus (`GET /metrics`).

Names follow Prometheus' conventions: base units, and `_total` for what only grows. All start at 0 with the
process. No label holds an id or the name of a person, so their number stays small. Metrics of
Slurm's hooks' events are in `schedulers.slurm.hooks`.
"""

from __future__ import annotations

import math
from importlib.metadata import version

from prometheus_client import Counter, Gauge, Histogram, Info

_SHORT_S = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_LONG_S = (0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)

BUILD = Info("oakum_build", "Version of the service.")
BUILD.info({"version": version("oakum")})

NODES = Gauge("oakum_nodes", "Nodes by state; `hole` is every node without a foreground job.", ["state"])
TRAINERS = Gauge("oakum_trainers", "Trainers that have not ended, by state.", ["state"])
FRAGMENTS = Gauge("oakum_fragments", "Fragments whose jobs may run, by phase: warming up or training.", ["phase"])
EFFICIENCY = Gauge(
    "oakum_efficiency_ratio", "Share of the holes in which a fragment trains at present; NaN without holes."
)
HOLE_NODE_S = Counter("oakum_hole_node_seconds", "Node-seconds without a foreground job.")
HARVESTED_NODE_S = Counter(
    "oakum_harvested_node_seconds", "Node-seconds of fragments from their first generation on, stalls included."
)
LOST_NODE_S = Counter(
    "oakum_lost_node_seconds",
    "Node-seconds that fragments had and that brought nothing, by cause: warm_up, a stall's cause, or repeated "
    "steps.",
    ["cause"],
)
IDLE_TIME_SHARE = Gauge(
    "oakum_idle_time_ratio",
    "Share of the idle node-time of the last seven days, by what became of it: trained, stalled, start_up, late, "
    "unwanted. Together they are 1; NaN without idle nodes.",
    ["use"],
)
LOST_SHARE = Gauge(
    "oakum_lost_ratio", "Share of the node-time lent this month that brought nothing; NaN without any."
)
LIMIT_DELAY_P99_S = Gauge(
    "oakum_limit_foreground_delay_p99_seconds", "Limit of the week's p99 of foreground delays; NaN without one."
)
LIMIT_LOST_SHARE = Gauge("oakum_limit_lost_ratio", "Limit of oakum_lost_ratio; NaN without one.")
LIMIT_EXCEEDED = Gauge(
    "oakum_limit_exceeded",
    "1 while a figure is above its limit, else 0, by figure: delay_p99 or lost_share.",
    ["of"],
)
for _gauge in (LOST_SHARE, LIMIT_DELAY_P99_S, LIMIT_LOST_SHARE):
    _gauge.set(math.nan)
NODES_AVOIDED = Gauge(
    "oakum_nodes_avoided", "Nodes on which nothing new is launched, because fragments came to nothing there."
)
FRAGMENT_ENDS = Counter("oakum_fragments_ended", "Fragments that have ended, by cause.", ["cause"])
CLOSED = Gauge("oakum_scheduler_closed", "1 while the scheduler begins no job of ours on any node, else 0.")
REFUSALS = Counter("oakum_submissions_refused", "Submissions that the scheduler has refused.")
STALL_S = Histogram("oakum_stall_seconds", "Stalls of rescales, by cause.", ["cause"], buckets=_LONG_S)
FOREGROUND_DELAY_S = Histogram(
    "oakum_foreground_delay_seconds",
    "How long foreground jobs waited for fragments to leave their nodes; 0 where none had to.",
    buckets=(0.0, *_LONG_S),
)

TURN_S = Histogram("oakum_turn_seconds", "Turns of the controller, by loop.", ["loop"], buckets=_SHORT_S)
TURN_FAILURES = Counter("oakum_turn_failures", "Turns that ended in an error, by loop.", ["loop"])
TURN_AGE_S = Gauge(
    "oakum_turn_age_seconds", "Seconds since the last turn of the membership loop; NaN where none has ended."
)
CONTROLLER = Gauge("oakum_controller", "1 while this process is the controller and takes turns, else 0.")
HELD = Gauge("oakum_held", "1 during a hold, else 0.")
WRITABLE = Gauge("oakum_database_writable", "0 while the service cannot write to its database, else 1.")
SNAPSHOT_AGE_S = Gauge(
    "oakum_snapshot_age_seconds", "Age of the scheduler's state that plans are made on; NaN before the first."
)
SILENT_S = Gauge(
    "oakum_scheduler_silent_seconds", "Seconds for which the scheduler has not answered; 0 while it answers."
)

SOLVE_S = Histogram("oakum_solve_seconds", "Time that the solver took for a plan.", buckets=_SHORT_S)
SOLVE_GAP = Gauge(
    "oakum_solve_gap_ratio", "How far the newest plan's value may be below the best one, as a share of the bound."
)
PLANS = Counter(
    "oakum_plans", "Problems that were solved, by whether the plan is proven to be optimal.", ["optimal"]
)
PLAN_FAILURES = Counter("oakum_plan_failures", "Turns in which no plan could be made.")

CALLS = Counter("oakum_scheduler_calls", "Commands and requests that the scheduler was sent.", ["command"])
CALL_FAILURES = Counter(
    "oakum_scheduler_call_failures", "Commands and requests to the scheduler that failed.", ["command"]
)
CALL_S = Histogram(
    "oakum_scheduler_call_seconds",
    "Seconds that the scheduler took to answer.",
    ["command"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)

UNREAD = Gauge(
    "oakum_scheduler_unread",
    "Nodes, jobs and reservations in the scheduler's newest state that could not be understood, by kind.",
    ["kind"],
)

REPORTS = Counter("oakum_reports", "Reports of agents that were written.")
REPORT_WRITE_S = Histogram(
    "oakum_report_write_seconds", "Time to write the reports that arrived together.", buckets=_SHORT_S
)
REPORT_INTERVAL_S = Gauge(
    "oakum_report_interval_seconds", "Seconds between two reports of each agent that tells no progress."
)

HOOKS_MISSED = Gauge(
    "oakum_hooks_missed",
    "Newest jobs in a row, at most 20, of whose start or end no hook of Slurm has told although hooks are "
    "installed.",
    ["of"],
)
HOOK_S = Histogram(
    "oakum_hook_seconds", "Time to record the events of one request of Slurm's hooks.", buckets=_SHORT_S
)
REQUESTS = Counter("oakum_requests", "HTTP requests that were answered, by status.", ["status"])
REQUEST_S = Histogram(
    "oakum_request_seconds", "Time to the beginning of the answer to an HTTP request.", buckets=_SHORT_S
)
EVENT_STREAMS = Gauge("oakum_event_streams", "Event streams that are open.")
