"""Orchestrates: takes the scheduler's state in, plans with `oakum_solver`, launches `oakum_worker` fragments.

Nothing imports this package. The API's routers are thin over `control` and `db`; the scheduler sits behind one
small port in `schedulers`; one controller at a time writes.
"""
