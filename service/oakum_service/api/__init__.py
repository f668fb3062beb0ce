"""The REST API under /v1: one thin router for each resource, over the database and the change signals.

`schemas` are its documents, `auth` its roles, `problems` its errors (RFC 9457). Routers take no decisions.
"""
