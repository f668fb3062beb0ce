"""The solver's exceptions.

SolverError
├── ProblemError         the caller's problem contradicts itself; says what was given and what was expected
├── MilpError            the MILP solver gave no usable answer; `solve` then keeps the best plan found before
├── InfeasiblePlanError  a plan fails verification; the service never records it
└── LogError             a log cannot be read; names file, line and cause
"""


class SolverError(Exception):
    """The solver cannot do what it was asked."""


class ProblemError(SolverError):
    """The problem that a caller gave contradicts itself; the message says what was given and what was expected."""


class MilpError(SolverError):
    """The MILP solver is missing, crashed, or gave no usable answer."""


class InfeasiblePlanError(SolverError):
    """The plan breaks a rule of the problem it was made for."""


class LogError(SolverError):
    """A log file cannot be read; the message names file, line and cause."""
