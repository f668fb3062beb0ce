"""An administrator's formula for what a trainer is worth, checked once and evaluated on whole tables.

The formula is written in Python's expression syntax. `ast.parse` reads it and what it reads is translated into a
postfix program of numbers, quantities and the operations listed here. Anything else is refused, with its column.
No part of the formula reaches Python's compiler, and the program's length bounds its running time.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import ProblemError

Values = NDArray[np.float64] | float

QUANTITIES: Final = {
    "samples": "samples made in the look-ahead, less what stalls cost; negative where they cost more",
    "nodes": "nodes at this size",
    "rate": "samples / look_ahead_s, samples/s",
    "speedup": "rate / rate_one",
    "rate_one": "samples/s on one node",
    "best_rate": "samples/s at the trainer's maximum",
    "weight": "the trainer's weight",
    "priority": "the trainer's priority",
    "attained": "samples trained so far",
    "remaining": "samples to its end; infinite for an endless trainer",
    "deadline_in_s": "seconds to its deadline; infinite without one, negative when it has passed",
    "waited_s": "seconds since it last had nodes; 0 while it has some",
    "look_ahead_s": "seconds over which a plan counts its gains",
}
"""What a formula may name, with its meaning and unit."""

MAX_CHARACTERS: Final = 500
MAX_PARTS: Final = 200
"""Most numbers, names, operations and calls in one formula."""
MAX_EXPONENT: Final = 8.0


@dataclass(frozen=True)
class Number:
    """Program step that pushes a constant on the stack."""

    value: float


@dataclass(frozen=True)
class Quantity:
    """Program step that pushes the value of one of `QUANTITIES` on the stack."""

    name: str


@dataclass(frozen=True)
class OperationStep:
    """Program step that takes `num_operands` values from the stack and pushes the result of the operation."""

    name: str
    num_operands: int


Program = tuple[Number | Quantity | OperationStep, ...]


def _flag(compare: np.ufunc) -> Callable[..., Any]:
    """The comparison as a function that returns 1.0 for true and 0.0 for false, because numpy neither negates nor
    subtracts booleans."""
    return lambda one, other: np.where(compare(one, other), 1.0, 0.0)


_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "**": np.power,
    "negative": np.negative,
    "<": _flag(np.less),
    "<=": _flag(np.less_equal),
    ">": _flag(np.greater),
    ">=": _flag(np.greater_equal),
    "==": _flag(np.equal),
    "!=": _flag(np.not_equal),
    "if": lambda test, then, otherwise: np.where(np.not_equal(test, 0.0), then, otherwise),
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "abs": np.abs,
    "min": lambda *values: functools.reduce(np.minimum, values),
    "max": lambda *values: functools.reduce(np.maximum, values),
    "clip": lambda value, low, high: np.minimum(np.maximum(value, low), high),
}
_FUNCTIONS: Final = {
    "log": (1, 1),
    "log1p": (1, 1),
    "sqrt": (1, 1),
    "exp": (1, 1),
    "abs": (1, 1),
    "min": (2, MAX_PARTS),
    "max": (2, MAX_PARTS),
    "clip": (3, 3),
}
"""Function -> fewest and most arguments."""
_BINARY: Final[dict[type[ast.operator], str]] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_WORD: Final = re.compile(
    r"""\s*(?:
        (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])   # a number
        | [A-Za-z_][A-Za-z0-9_]*
        | \*\*|[<>=!]=|[-+*/(),<>]
    )\s*""",
    re.VERBOSE | re.ASCII,
)
ALLOWED: Final = (
    f"the quantities {', '.join(QUANTITIES)}; numbers; + - * / **; < <= > >= == !=; a if c else b; "
    f"and the functions {', '.join(_FUNCTIONS)}"
)


def compile_formula(source: str) -> Program:
    """Translate a formula into a program.

    Raises `ProblemError` that names the first part that is not allowed, its column (from 1) and what is allowed.
    """
    _check_words(source)
    try:
        tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        column = error.offset or len(source) + 1
        complaint = error.msg if column <= len(source) else "it ends too early"
        raise _refusal(source, column, complaint) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise _refusal(source, 1, f"too deeply nested to be read ({type(error).__name__})") from None
    parts = sum(isinstance(part, ast.expr) for part in ast.walk(tree))
    if parts > MAX_PARTS:
        raise ProblemError(f"formula {source!r} has {parts} parts: expected at most {MAX_PARTS}")
    return tuple(_translate(tree, source))


def evaluate(program: Program, quantities: Mapping[str, Values]) -> NDArray[np.float64]:
    """The program's value for every element of the broadcast quantities; nan or inf where it is undefined."""
    stack: list[Any] = []
    with np.errstate(all="ignore"):
        for step in program:
            match step:
                case Number(value):
                    stack.append(value)
                case Quantity(name):
                    stack.append(quantities[name])
                case OperationStep(name, num_operands):
                    operands = stack[-num_operands:]
                    stack[-num_operands:] = [_OPERATIONS[name](*operands)]
    return np.asarray(stack.pop(), dtype=np.float64)


def names_in(program: Program) -> tuple[str, ...]:
    """Names of the quantities that the program uses, each once, in order of appearance."""
    return tuple(dict.fromkeys(step.name for step in program if isinstance(step, Quantity)))


def _check_words(source: str) -> None:
    """Raise `ProblemError` for strings, square brackets, attributes or letters other than ASCII.

    Only text that passes reaches Python's parser.
    """
    if not source:
        raise ProblemError(f"the formula is empty: expected {ALLOWED}")
    if len(source) > MAX_CHARACTERS:
        raise ProblemError(f"the formula has {len(source)} characters: expected at most {MAX_CHARACTERS}")
    position = 0
    while position < len(source):
        word = _WORD.match(source, position)
        if word is None:
            raise _refusal(source, position + 1, f"{source[position : position + 20]!r} is not expected")
        position = word.end()


def _translate(node: ast.expr, source: str) -> Iterator[Number | Quantity | OperationStep]:
    """The program steps of one node of the syntax tree: those of its operands, then its own operation. Raises
    `ProblemError` for what a formula may not contain."""
    match node:
        case ast.Constant():
            yield Number(_number(node, source))
        case ast.Name(id=name) if name in QUANTITIES:
            yield Quantity(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _operation("negative", [operand], source)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            yield from _translate(left, source)
            yield Number(_exponent(right, source))
            yield OperationStep("**", 2)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _BINARY:
            yield from _operation(_BINARY[type(operator)], [left, right], source)
        case ast.Compare(left=left, ops=[compare], comparators=[right]) if type(compare) in _COMPARISONS:
            yield from _operation(_COMPARISONS[type(compare)], [left, right], source)
        case ast.IfExp(test=test, body=then, orelse=otherwise):
            yield from _operation("if", [test, then, otherwise], source)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            _check_arguments(node, name, len(arguments), source)
            yield from _operation(name, arguments, source)
        case _:
            raise _refusal(source, node.col_offset + 1, _complaint(node, source))


def _operation(name: str, operands: list[ast.expr], source: str) -> Iterator[Number | Quantity | OperationStep]:
    for operand in operands:
        yield from _translate(operand, source)
    yield OperationStep(name, len(operands))


def _number(node: ast.Constant, source: str) -> float:
    value, number = node.value, math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not math.isfinite(number):
        raise _refusal(source, node.col_offset + 1, f"{_text(node, source)} is not a finite number")
    return number


def _exponent(node: ast.expr, source: str) -> float:
    """The value of a power's exponent. Raises `ProblemError` unless it is constant and small enough that no power
    of a usual number overflows."""
    program = tuple(_translate(node, source))
    number = math.nan if names_in(program) else float(evaluate(program, {}))
    if not abs(number) <= MAX_EXPONENT:
        wanted = f"a constant from -{MAX_EXPONENT:g} to {MAX_EXPONENT:g}"
        raise _refusal(source, node.col_offset + 1, f"the exponent {_text(node, source)} is not {wanted}")
    return number


def _check_arguments(node: ast.Call, name: str, num_arguments: int, source: str) -> None:
    fewest, most = _FUNCTIONS[name]
    if not fewest <= num_arguments <= most:
        expected = f"{'' if fewest == most else 'at least '}{fewest} argument{'s' if fewest > 1 else ''}"
        raise _refusal(source, node.col_offset + 1, f"{name} takes {expected} and is given {num_arguments}")


def _complaint(node: ast.expr, source: str) -> str:
    match node:
        case ast.Name(id=name):
            return f"{name!r} is no quantity"
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return f"{name!r} is no function"
        case ast.Compare(ops=[_, _, *_]):
            return f"{_text(node, source)} compares more than two things at once"
        case _:
            return f"{_text(node, source)} is not allowed"


def _text(node: ast.expr, source: str) -> str:
    return repr(source[node.col_offset : node.end_col_offset])


def _refusal(source: str, column: int, complaint: str) -> ProblemError:
    return ProblemError(f"formula {source!r}, column {column}: {complaint}; expected {ALLOWED}")
