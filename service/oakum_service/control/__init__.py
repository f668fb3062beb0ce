"""The control loop: observe -> membership and forecast -> plan -> execute, and the controller that runs it.

The modules here read and write the database; `decide` is pure. Only the process that holds the lease writes.
"""
