"""The service: reads the scheduler's state, plans with `oakum_solver`, launches `oakum_worker` fragments on idle
nodes.

Of the other packages only `oakum_client` imports it. The API's routers are thin layers over `control` and `db`;
every scheduler is reached through the one small interface in `schedulers.port`; one controller at a time writes.
"""
