"""What people order while the service runs: the hold, pauses, quotas and settings. Each is a row, so it outlasts a
restart and counts for all processes of the service."""
