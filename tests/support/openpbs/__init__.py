"""A third scheduler: OpenPBS, as far as the service needs it to find holes and to begin a fragment there."""
