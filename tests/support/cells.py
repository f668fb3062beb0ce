"""One test for a table of cases: it goes through all of them and names those that failed.

`pytest.mark.parametrize` makes a test of each case, which takes pytest longer than most cases take themselves.
`each` is for cases whose neighbours show the same and that share nothing a case could change: fixtures are made
once for all of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def each(
    names: str | Sequence[str],
    cells: Iterable[Any],
    *,
    ids: Iterable[str] | Callable[[Any], str | None] | None = None,
) -> Callable[[Test], Test]:
    """Has a test run for each cell, with the arguments of `pytest.mark.parametrize`: the names of the test's
    parameters, and for each cell its value, or a tuple of values if there are several names.

    The test goes on after a cell that fails, and then fails with all that has failed and the cells' names. Cells
    have no marks of their own. A skip in one cell skips the test.
    """
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    told = iter(ids) if ids is not None and not callable(ids) else None
    rows: list[tuple[str, dict[str, Any]]] = []
    for cell in cells:
        name = next(told) if told is not None else None
        values = (cell,) if len(fields) == 1 else tuple(cell)
        if callable(ids):
            name = "-".join(ids(value) or repr(value) for value in values)
        rows.append((name or ", ".join(map(repr, values)), dict(zip(fields, values, strict=True))))

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def in_every_cell(*arguments: Any, **fixtures: Any) -> None:
            failures: list[Exception] = []
            for name, values in rows:
                try:
                    test(*arguments, **fixtures, **values)
                except pytest.fail.Exception as failure:
                    failures.append(_noted(AssertionError(str(failure)), name))
                except Exception as failure:
                    failures.append(_noted(failure, name))
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(rows)} cells of {test.__name__} failed", failures)

        signature = inspect.signature(test)
        left = [value for name, value in signature.parameters.items() if name not in fields]
        in_every_cell.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return in_every_cell

    return decorate


def _noted(failure: Exception, cell: str) -> Exception:
    failure.add_note(f"In the cell {cell}")
    return failure
