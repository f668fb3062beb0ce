"""The control loop: observe -> membership, forecast -> plan -> execute, and the controller that turns them.

Everything here reads and writes the database; `decide` and `forecast` are pure. Only the lease's holder writes.
"""
