
# Posts what the hooks have kept while the service did not take it. Run it every minute, on the head node as SlurmUser
# and on nodes as root. What the service has heard already it does not count again.
LIMIT_S=10
GUARD_S=12
MOST_AT_ONCE=200
MOST_POSTS=20000

for kept in "$FALLBACK-ctld" "$FALLBACK-node" "$SPOOL/ctld" "$SPOOL/node"; do
    most=$MOST_AT_ONCE
    num_posts=0
    while [ "$num_posts" -lt "$MOST_POSTS" ]; do
        send_kept "$kept" "$most" "$LIMIT_S" "$GUARD_S"
        [ "$num_sent" -gt 0 ] || break
        num_posts=$((num_posts + 1))
        case "$code" in
            204) "$RM" -f "$kept/.rest" ;;
            # One of them is not understood: one at a time finds out which.
            400 | 413 | 422) most=1 ;;
            *) break ;;
        esac
    done
done
exit 0
