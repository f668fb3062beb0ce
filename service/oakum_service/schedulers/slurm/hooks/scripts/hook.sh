
DATE='@DATE@'
MKDIR='@MKDIR@'
LOGGER='@LOGGER@'
HOOK='@HOOK@'
PLACE='@PLACE@'
CLUSTER='@CLUSTER@'
# A job may wait for this script: in all it takes no longer than 2 seconds.
LIMIT_S=1.2
GUARD_S=1.3
KEPT_LIMIT_S=0.4
KEPT_GUARD_S=0.5
MOST_AT_ONCE=20
MOST_KEPT=@MOST_KEPT@
# Seconds for which nothing is posted after the service has kept a hook waiting, so that not every job waits.
REST_S=@REST_S@

is_number() {
    case "$1" in
        '' | *[!0-9]* | ????????????????????*) return 1 ;;
    esac
}

# add NAME VALUE: only values that need no escaping come here.
add() {
    [ -z "$2" ] || event="$event,\"$1\":\"$2\""
}

add_number() {
    if is_number "$2"; then add "$1" "$2"; fi
}

# keep FOLDER NAME: fails unless the event is there, whole.
keep() {
    [ -d "$1" ] || "$MKDIR" -p -m 700 "$1"
    is_ours "$1" || return 1
    part=$1/.$$.part
    back=
    if printf '%s\n' "$event" >"$part" && IFS= read -r back <"$part" && [ "$back" = "$event" ]; then
        "$MV" -f "$part" "$1/$2" && trim "$1" && return 0
    fi
    "$RM" -f "$part"
    return 1
}

# trim FOLDER: the oldest go first, as names begin with the time. Each call adds one file.
trim() {
    set -- "$1"/*.json
    if [ "$#" -gt "$MOST_KEPT" ] && [ "$#" -gt 2 ]; then "$RM" -f "$1" "$2"; fi
    return 0
}

rests() {
    for folder in "$SPOOL/$PLACE" "$FALLBACK-$PLACE"; do
        until=
        if is_ours "$folder" && [ -f "$folder/.rest" ]; then IFS= read -r until <"$folder/.rest"; fi
        # A clock that was set back must not make it a long rest.
        if is_number "$until" && is_number "$at" && [ "$at" -lt "$until" ] && [ "$until" -le "$((at + REST_S))" ]; then
            return 0
        fi
    done
    return 1
}

job=${SLURM_JOB_ID:-}
is_number "$job" || exit 0
at=
if [ -x "$DATE" ]; then at=$("$DATE" +%s); fi
restart=${SLURM_JOB_RESTART_COUNT:-${SLURM_RESTART_COUNT:-}}
is_number "$restart" || restart=
cluster=${SLURM_CLUSTER_NAME:-$CLUSTER}
case "$cluster" in
    *[!A-Za-z0-9_.-]*) cluster= ;;
esac
# The nodes' hooks of Slurm 22.05 have the older name.
nodes=${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}
case "$nodes" in
    *[!][A-Za-z0-9_.,-]*) nodes= ;;
esac
partition=${SLURM_JOB_PARTITION:-}
case "$partition" in
    *[!A-Za-z0-9_.+:@-]*) partition= ;;
esac
node=
if [ "$PLACE" = node ]; then
    node=${SLURMD_NODENAME:-}
    if [ -z "$node" ]; then
        IFS= read -r node </proc/sys/kernel/hostname
        node=${node%%.*}
    fi
    case "$node" in
        '' | *[!A-Za-z0-9_.-]*) exit 0 ;;
    esac
fi

event="{\"hook\":\"$HOOK\",\"job_id\":\"$job\""
add_number restart "$restart"
add cluster "$cluster"
add node "$node"
add nodes "$nodes"
add partition "$partition"
add_number uid "${SLURM_JOB_UID:-}"
add_number start_at "${SLURM_JOB_START_TIME:-}"
add_number end_at "${SLURM_JOB_END_TIME:-}"
add_number at "$at"
event="$event}"

code=000
slow=
rests || post "$LIMIT_S" "$GUARD_S" "{\"events\":[$event]}"
if [ "$code" = 204 ]; then
    # Memory first: what is on a disk that has become read-only is sent for ever.
    for folder in "$FALLBACK-$PLACE" "$SPOOL/$PLACE"; do
        send_kept "$folder" "$MOST_AT_ONCE" "$KEPT_LIMIT_S" "$KEPT_GUARD_S"
        [ "$num_sent" = 0 ] || exit 0
    done
    exit 0
fi

name=${at:-0}-$job-${restart:-x}-$HOOK-$node-$cluster.json
for kept in "$SPOOL/$PLACE" "$FALLBACK-$PLACE"; do
    if keep "$kept" "$name"; then
        if [ -n "$slow" ] && is_number "$at"; then printf '%s\n' "$((at + REST_S))" >"$kept/.rest"; fi
        exit 0
    fi
done
if [ -x "$LOGGER" ] && [ -x "$TIMEOUT" ]; then
    "$TIMEOUT" -s KILL 0.1 "$LOGGER" -t oakum-hook "neither posted nor kept: $event"
fi
exit 0
