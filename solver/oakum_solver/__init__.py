"""Decides which trainer gets which idle node.

Pure: values in, values out. No database, no torch, no wall clock, no I/O beside reading a log file and
running the MILP solver's own process. The service calls `solve`; `oakum replay` calls the same function on
a log.
"""
