"""Several processes of the service on one PostgreSQL database and one data directory.

One of them is the controller: it holds the lease. Each of them answers every request. What a request changes is in
the database before the others are told of it, so a message that gets lost costs time and nothing else.
"""
