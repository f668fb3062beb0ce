"""Decides which trainer gets which idle node.

The package is pure: values in, values out. It uses no database, no torch and no wall clock; its only I/O is to
read log files and to run the MILP solver's process. The service and `oakum replay` both plan with `solve.solve`.
"""
