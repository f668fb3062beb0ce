"""Prints and writes the result of `oakum replay`, and reports errors of the solver."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oakum_client.cli.app import CommandError
from oakum_client.cli.output_file import OutputFile
from oakum_client.cli.replay_options import OutputOptions
from oakum_client.cli.replay_own import print_own

if TYPE_CHECKING:
    from oakum_solver.replay.result import ReplayResult


@dataclass(frozen=True)
class ReplayOutputs:
    """The files and the format that a replay's result is written in."""

    report: OutputFile | None
    steps: OutputFile | None
    as_json: bool

    @classmethod
    def from_options(cls, options: OutputOptions, inputs: Mapping[str, Path]) -> ReplayOutputs:
        """The outputs, checked before the replay, which takes minutes; `inputs`: name in messages -> path.

        Raises `CommandError` for a file that cannot be written, or that is also an input or the other output.
        """
        report = None if options.report is None else OutputFile(options.report, "--report")
        steps = None if options.steps is None else OutputFile(options.steps, "--steps")
        for file, (name, path) in itertools.product((report, steps), inputs.items()):
            if file is not None and file.same_as(path):
                raise CommandError(f"{file.path} is {name} itself: give another name")
        if options.report is not None and steps is not None and steps.same_as(options.report):
            raise CommandError("--report and --steps are the same file: give two names")
        if report is not None:
            with solver_errors_as_refusals():
                from oakum_solver.replay.report import check_plotly

                check_plotly()
        return cls(report, steps, options.as_json)

    def write(self, result: ReplayResult, own: dict[str, Any] | None = None) -> None:
        """Write the files, then print the result: one JSON object, or a summary for a person. `own` is what the
        service itself has achieved, by `own_document`."""
        if self.report is not None:
            from oakum_solver.replay.report import as_html

            self.report.write([as_html(result)])
        if self.steps is not None:
            from oakum_solver.replay.export import steps_csv

            self.steps.write(steps_csv(result.steps))
        if self.as_json:
            from oakum_solver.replay.export import as_document

            document = as_document(result) if own is None else {**as_document(result), "own": own}
            typer.echo(json.dumps(document, indent=2, allow_nan=False))
        else:
            from oakum_client.cli.replay_summary import print_summary

            print_summary(result)
            if own is not None:
                print_own(own)


@contextmanager
def solver_errors_as_refusals() -> Iterator[None]:
    """Context in which an error of the solver, or a missing module that it needs, is raised as `CommandError`."""
    try:
        from oakum_solver.errors import SolverError
    except ModuleNotFoundError as error:
        raise CommandError(_missing_module(error)) from error
    try:
        yield
    except SolverError as error:
        raise CommandError(str(error)) from error
    except ModuleNotFoundError as error:
        raise CommandError(_missing_module(error)) from error


def _missing_module(error: ModuleNotFoundError) -> str:
    return f"a replay needs {error.name}: run pip install '.[solver]' in Oakum's checkout"
