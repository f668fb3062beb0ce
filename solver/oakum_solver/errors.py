"""The solver's exceptions.

SolverError
├── ProblemError         a problem that makes no sense: what was given, what was expected
├── MilpError            the MILP solver gave no usable answer; `solve` then keeps the greedy plan
├── InfeasiblePlanError  a plan that fails verification; never recorded
└── LogError             a log that cannot be read: file, line and cause
"""


class SolverError(Exception):
    """The solver cannot do what it was asked."""


class ProblemError(SolverError):
    """The problem contradicts itself."""


class MilpError(SolverError):
    """The MILP solver gave no usable answer."""


class InfeasiblePlanError(SolverError):
    """The plan breaks a rule of the problem it was made for."""


class LogError(SolverError):
    """A log cannot be read."""
