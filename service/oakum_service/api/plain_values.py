"""Refuses what JSON and URLs can say and a database, a plan or the next reader cannot take.

Both databases keep 64-bit integers and Unicode text, and PostgreSQL no NUL; products and quotients of two numbers
have to be numbers again. Decided here once, it holds for every field of every route; limits of a single field's
own stay with the field.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError

_SMALLEST, _LARGEST = 1e-150, 1e150
"""Of a number that is not 0, without its sign: the product and the quotient of two are finite and not 0."""
_INTEGERS = range(-(2**63), 2**63)
_DEEPEST = 100
_LONGEST_KEY = 80
_LARGE_BYTES = 50_000
"""A body above this is looked through in a thread, while other requests are answered."""
Place = tuple[str | int, ...]


async def refuse_odd_values(request: Request) -> None:
    """Dependency of routes. Raises `RequestValidationError` for a value in the request's path, query or JSON body
    that is not plain."""
    given: dict[str, Any] = {
        "path": dict(request.path_params),
        "query": {name: request.query_params.getlist(name) for name in request.query_params},
        # What FastAPI has parsed; nothing for routes without a body in JSON, or that read it themselves.
        "body": vars(request).get("_json"),
    }
    is_large = given["body"] is not None and len(await request.body()) > _LARGE_BYTES
    found = await asyncio.to_thread(odd_value, given) if is_large else odd_value(given)
    if found is not None:
        place, problem = found
        raise RequestValidationError([{"loc": place, "msg": problem, "type": "value_error"}])


def odd_value(document: dict[Any, Any]) -> tuple[Place, str] | None:
    """Where the first value of a JSON document is that is not plain, and what is wrong with it; None if there is
    none."""
    left: list[tuple[Place, Any]] = [((), document)]
    while left:
        place, whole = left.pop()
        if len(place) > _DEEPEST:
            return place[:2], f"is nested more than {_DEEPEST} levels deep: give a file's name instead"
        for name, part in whole.items() if isinstance(whole, dict) else enumerate(whole):
            if isinstance(name, str) and (problem := _problem_of_text(name)) is not None:
                return (*place, ascii(name)[1:-1][:_LONGEST_KEY]), f"the field's name: {problem}"
            if isinstance(part, dict | list):
                left.append(((*place, name), part))
            elif (problem := _problem(part)) is not None:
                return (*place, name), problem
    return None


def _problem(value: Any) -> str | None:
    if isinstance(value, str):
        return _problem_of_text(value)
    if isinstance(value, float):
        return _problem_of_number(value)
    if isinstance(value, int) and value not in _INTEGERS:
        return f"an integer of {value.bit_length()} bits: expected one from -2^63 to 2^63 - 1"
    return None


def _problem_of_text(text: str) -> str | None:
    if "\0" in text:
        return "contains the character NUL (U+0000): leave it out"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        return f"no Unicode text: U+{half:04X} at character {error.start} is half of a pair: leave it out"
    return None


def _problem_of_number(number: float) -> str | None:
    if number == 0 or _SMALLEST <= abs(number) <= _LARGEST:
        return None
    told = f"{number:g} is out of range" if math.isfinite(number) else "no finite number"
    return f"{told}: expected 0, or a number from {_SMALLEST:g} to {_LARGEST:g}, negative or not"
