#!/bin/sh
# Written by `oakum hooks install`, which also replaces it. POSIX sh with absolute paths: Slurm's hooks have no PATH.
#
# What is posted from here fails in every way: the service is away, hangs, refuses; the disk is full. None of that is
# Slurm's business, whose nodes are drained by a prolog that fails: this script says nothing and always exits 0.

trap 'exit 0' EXIT HUP INT TERM
exec </dev/null >/dev/null 2>&1
umask 077
LC_ALL=C
export LC_ALL

CURL='@CURL@'
TIMEOUT='@TIMEOUT@'
MV='@MV@'
RM='@RM@'
CONFIG='@CONFIG@'
SPOOL='@SPOOL@'
# In memory, for when the spool's disk is full or its folder cannot be used; a reboot empties it.
FALLBACK='@FALLBACK@'

# post LIMIT_S GUARD_S BODY: sets `code` to the HTTP status, other than 3 digits or 000 where there was none, and
# `slow` where it was waited for in vain. The token is in a file for curl: a command line is there for all to see.
post() {
    guard_s=$2
    body=$3
    code=000
    slow=
    [ -x "$CURL" ] || return 0
    set -- "$CURL" -q -s --config "$CONFIG" --connect-timeout "$1" --max-time "$1" \
        --data-binary @- -o /dev/null -w '%{http_code}'
    if [ -x "$TIMEOUT" ]; then set -- "$TIMEOUT" -s KILL "$guard_s" "$@"; fi
    code=$(printf '%s' "$body" | "$@")
    # shellcheck disable=SC2034  # for the hooks
    case $? in
        28 | 124 | 137) slow=1 ;;
    esac
}

# is_ours FOLDER: anybody may make a folder where the fallback is.
is_ours() {
    if ! [ -d "$1" ] || [ -L "$1" ]; then return 1; fi
    # shellcheck disable=SC3067  # dash, bash, ksh and busybox all have -O
    case "$1" in
        "$FALLBACK"*) [ -O "$1" ] ;;
    esac
}

# send_kept FOLDER MOST LIMIT_S GUARD_S: posts the oldest events kept there, at most MOST, and removes them once they
# are taken. Sets `num_sent` to how many it has posted, and `code`. Of what cannot be read or is refused it leaves
# the newest, as `refused`.
send_kept() {
    folder=$1
    most=$2
    limit_s=$3
    guard_s=$4
    events=
    num_sent=0
    set --
    is_ours "$folder" || return 0
    for file in "$folder"/*.json; do
        [ "$num_sent" -lt "$most" ] || break
        if ! [ -f "$file" ] || [ -L "$file" ]; then continue; fi
        event=
        IFS= read -r event <"$file"
        case "$event" in
            '{'*'}') ;;
            *)
                "$MV" -f "$file" "$folder/refused"
                continue
                ;;
        esac
        events="$events${events:+,}$event"
        num_sent=$((num_sent + 1))
        set -- "$@" "$file"
    done
    [ "$num_sent" -gt 0 ] || return 0
    post "$limit_s" "$guard_s" "{\"events\":[$events]}"
    case "$code" in
        204)
            "$RM" -f "$@"
            # Where they cannot be removed, there is no end of sending them.
            if [ -e "$1" ]; then code=000; fi
            ;;
        400 | 413 | 422) if [ "$num_sent" = 1 ]; then "$MV" -f "$1" "$folder/refused"; fi ;;
    esac
}
