"""`python -m oakum_worker advise`: makes the measurements that `oakum advise` needs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from oakum_worker.errors import WorkerError
from oakum_worker.profiling.command import reported
from oakum_worker.profiling.options import MemoryOption, SpecArgument, parse_bytes
from oakum_worker.spec import read_spec
from oakum_worker.task_checks import describe
from oakum_worker.trying.lease import as_lines, end_with_whoever_asks, leave, own_output


def advise_command(
    spec: SpecArgument,
    memory: MemoryOption = None,
    compiles: Annotated[
        bool, typer.Option("--try-compile", help="Try torch.compile on each layer, too; takes minutes.")
    ] = False,
    choice: Annotated[
        str | None,
        typer.Option(
            "--choice", metavar="JSON", help='Check a choice: {"algorithms": {module: name}, "sizes": [samples]}.'
        ),
    ] = None,
    leased: Annotated[bool, typer.Option("--leased", hidden=True)] = False,
) -> None:
    """Measure memory and time of a task and of other algorithms for its layers, as lines of JSON.

    `oakum advise` makes its advice from them. Ends with status 2 where the task fails. Writes nothing.
    """
    with reported():
        document = read_spec(spec)
        limit = parse_bytes(memory) if memory is not None else None
    out = own_output()
    tell = as_lines(out)
    if leased:
        end_with_whoever_asks(tell)
    from oakum_worker.advice.survey import Surveyor

    surveyor = Surveyor(document, limit, tell, compiles=compiles)
    try:
        facts: dict[str, Any]
        if choice is None:
            facts = asdict(surveyor.survey())
        else:
            wanted = json.loads(choice)
            facts = {"checked": surveyor.check(wanted["algorithms"], wanted["sizes"])}
    except (Exception, SystemExit) as error:
        text = str(error) if isinstance(error, WorkerError) else f"measuring raised {describe(error)}"
        failed = {"check": "measuring", "state": "failed", "seconds": 0.0, "message": text, "lacks": None}
        tell(failed)
        leave(2, out)
    tell({"state": "facts", "facts": facts})
    leave(0, out)
