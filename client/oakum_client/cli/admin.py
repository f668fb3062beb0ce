"""`oakum token` and `oakum db`: administration on the service's own machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oakum_client.cli.app import CommandError, app, example
from oakum_client.cli.columns import Column, ColumnsOption, Listing, SortOption
from oakum_client.cli.output import console
from oakum_client.cli.units import age, clock, duration, parse_duration

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from oakum_service.db.models.callers import ApiToken

SERVICE = "Service"

token_app = typer.Typer(
    no_args_is_help=True, help="Make, list, replace and revoke API tokens, on the service's machine."
)
db_app = typer.Typer(no_args_is_help=True, help="Upgrade, back up and check the database.")
app.add_typer(token_app, name="token", rich_help_panel=SERVICE)
app.add_typer(db_app, name="db", rich_help_panel=SERVICE)


Label = Annotated[str | None, typer.Option(help="What the token is for, such as laptop.")]


@token_app.command(
    "create",
    epilog=example("oakum token create alice --role user", "oakum token create ci --expires 90d --label nightly"),
)
def create(
    name: Annotated[str, typer.Argument(help="User whose token it is.")],
    role: Annotated[
        Literal["hook", "viewer", "user", "admin"], typer.Option(help="What the token may do.")
    ] = "user",
    label: Label = None,
    expires: Annotated[
        str | None, typer.Option(help="How long it is valid: 12h, 90d. Without: until it is revoked.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a token and print it. It is not stored and cannot be shown again."""
    for what, text in (("name", name), ("label", label or "-")):
        if not (text.strip() and len(text) <= 63 and text.isprintable()):
            raise CommandError(f"{text!r} cannot be a token's {what}: give 1 to 63 printable characters")
    lifetime_s = None if expires is None else parse_duration(expires)
    if lifetime_s == 0:
        raise CommandError("--expires 0: give a time that is longer than nothing, such as 90d")
    from oakum_service.db.engine import open_sessions
    from oakum_service.identity import audit, tokens

    if tokens.names_session(label or ""):
        raise CommandError(f"{label!r}: sessions of the dashboard have labels that begin so: choose another label")
    with open_sessions(open_database()).begin() as session:
        text = tokens.create(session, audit.local_actor(), name, role, label or "", lifetime_s)
    _print_token(text, as_json=json_output)


@token_app.command("list", epilog=example("oakum token list"))
def list_tokens(
    columns: ColumnsOption = None,
    sort: SortOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the tokens: whose they are, what they may do, until when, and when they were last used. A token's text
    is not among what is known."""
    import json

    from oakum_service.db.engine import open_readers
    from oakum_service.identity import tokens

    listing = _token_listing()
    listing.check(columns, sort)
    with open_readers(open_database()).begin() as session:
        rows = tokens.listed(session)
    if json_output:
        fields = ("name", "role", "label", "created_at", "expires_at", "used_at")
        documents = [{"id": tokens.id_of(row)} | {field: getattr(row, field) for field in fields} for row in rows]
        typer.echo(json.dumps({"tokens": documents}))
        return
    console().print(listing.table(rows, columns, sort))


@token_app.command("rotate", epilog=example("oakum token rotate alice --label laptop --overlap 1d"))
def rotate(
    name: Annotated[str, typer.Argument(help="User whose token it is.")],
    label: Label = None,
    overlap: Annotated[str, typer.Option(help="How long the old token stays valid: 0, 10m, 1d.")] = "1h",
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a token in place of one and print it. The old one stays valid for a while, so nothing that uses it
    stops."""
    from oakum_service.db.engine import open_sessions
    from oakum_service.identity import audit, tokens

    now = time.time()
    with open_sessions(open_database()).begin() as session:
        rows = [row for row in _find_tokens(session, name, label) if tokens.is_valid(row, now)]
        rows = [row for row in rows if not tokens.is_session(row)]
        if len(rows) != 1:
            others = "there is none that is valid" if not rows else f"there are {len(rows)}: give --label"
            raise CommandError(f"one token of {name!r} can be replaced, and {others} (`oakum token list`)")
        text = tokens.rotate(session, rows[0], parse_duration(overlap), now)
        audit.record(session, audit.local_actor(), "token.rotated", name, name, id=tokens.id_of(rows[0]))
    _print_token(text, as_json=json_output)


@token_app.command("revoke", epilog=example("oakum token revoke alice", "oakum token revoke alice --label laptop"))
def revoke(name: Annotated[str, typer.Argument(help="Whose tokens.")], label: Label = None) -> None:
    """Revoke all tokens of that name, or those with a label, and end the dashboard's sessions begun with them."""
    from oakum_service.db.engine import open_sessions
    from oakum_service.identity import audit, tokens

    with open_sessions(open_database()).begin() as session:
        rows = _find_tokens(session, name, label)
        for row in rows:
            session.delete(row)
            audit.record(session, audit.local_actor(), "token.revoked", name, name, id=tokens.id_of(row))
        session.flush()
        for row in rows:
            tokens.end_sessions(session, row)
    typer.echo(f"revoked {len(rows)} token{'s' * (len(rows) != 1)} of {name}")


def _find_tokens(session: Session, name: str, label: str | None) -> Sequence[ApiToken]:
    """The user's tokens, those with the label where it is given. Raises `CommandError` where there is none."""
    from oakum_service.identity import tokens

    rows = tokens.listed(session, name, label)
    if not rows:
        which = "" if label is None else f" with the label {label!r}"
        raise CommandError(f"there is no token named {name!r}{which}: `oakum token list` shows them")
    return rows


def _print_token(text: str, *, as_json: bool) -> None:
    import json

    typer.echo(json.dumps({"token": text}) if as_json else text)


def _token_listing() -> Listing[ApiToken]:
    from oakum_service.identity import tokens
    from oakum_service.logs.plain_text import plain

    return Listing(
        {
            "id": Column("ID", tokens.id_of),
            "name": Column("NAME", lambda row: plain(row.name)),
            "role": Column("ROLE", lambda row: row.role),
            "label": Column("LABEL", lambda row: plain(row.label) or "-"),
            "expires": Column("EXPIRES", _expiry, key=lambda row: row.expires_at),
            "used": Column(
                "LAST USE",
                lambda row: "never" if row.used_at is None else f"{age(row.used_at)} ago",
                key=lambda row: row.used_at,
            ),
            "made": Column("MADE", lambda row: clock(row.created_at), key=lambda row: row.created_at),
        },
        usual=("id", "name", "role", "label", "expires", "used"),
    )


def _expiry(row: ApiToken) -> str:
    if row.expires_at is None:
        return "never"
    left_s = row.expires_at - time.time()
    return f"in {duration(left_s)}" if left_s > 0 else f"over since {clock(row.expires_at)}"


@db_app.command("upgrade", epilog=example("OAKUM_DATABASE_URL=postgresql://oakum@db/oakum oakum db upgrade"))
def upgrade() -> None:
    """Bring the schema to the newest revision. `oakum serve` itself upgrades SQLite."""
    from oakum_service.db import engine
    from oakum_service.errors import ServiceError

    try:
        engine.upgrade(open_database(check=False))
    except ServiceError as error:
        raise CommandError(str(error)) from error
    typer.echo("the schema is up to date")


@db_app.command("backup", epilog=example("oakum db backup oakum-before.db"))
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; it must not exist yet.")],
) -> None:
    """Copy the database into a file, also while the service runs.

    SQLite's becomes a SQLite file, PostgreSQL's a dump for `pg_restore`. Only its owner may read the file. Ctrl-C
    leaves nothing behind.
    """
    from oakum_service.db.backup import back_up
    from oakum_service.errors import ServiceError

    try:
        num_bytes = back_up(open_database(), file)
    except ServiceError as error:
        raise CommandError(str(error)) from error
    typer.echo(f"{file}: {num_bytes:,} bytes")


@db_app.command("check", epilog=example("oakum db check", "oakum db check --json"))
def check(json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the database: its revision, its integrity, and rows that refer to rows that are not there.

    Reads all of it, which may take minutes for gigabytes; the service may run. Ends with exit code 1 if something
    is wrong.
    """
    import json

    from oakum_service.db.backup import examine
    from oakum_service.errors import ServiceError

    try:
        examination = examine(open_database(check=False))
    except ServiceError as error:
        raise CommandError(str(error)) from error
    if json_output:
        typer.echo(
            json.dumps(
                {"database": examination.database, "revision": examination.revision, "faults": examination.faults}
            )
        )
    else:
        typer.echo(f"{examination.database} is at revision {examination.revision}")
        for fault in examination.faults:
            typer.echo(fault)
    if examination.faults:
        raise typer.Exit(1)


@db_app.command("downgrade", epilog=example("oakum db downgrade 0018 --yes"))
def downgrade(
    revision: Annotated[str, typer.Argument(help="Revision to go back to, such as 0018.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take the schema back to an earlier revision, for an earlier version of Oakum.

    What only later revisions can hold is lost, so make a backup first. Refused while a service uses the database.
    """
    from oakum_service.db import engine
    from oakum_service.db.backup import refuse_downgrade, revisions_after
    from oakum_service.errors import ServiceError

    database = open_database(check=False)
    try:
        lost = revisions_after(database, revision)
        refuse_downgrade(database)
        if not lost:
            typer.echo(f"the schema is at revision {revision} already")
            return
        typer.echo("What these revisions added is lost:\n" + "\n".join(f"  {line}" for line in lost), err=True)
        if not yes and not typer.confirm("Go back?", err=True):
            raise CommandError("nothing was changed")
        engine.downgrade(database, revision)
    except ServiceError as error:
        raise CommandError(str(error)) from error
    typer.echo(f"the schema is at revision {revision}")


def open_database(*, check: bool = True) -> Engine:
    """Open the database that the settings name, and return its engine. Raises `CommandError` if it cannot be
    used and, with `check`, if its schema is outdated."""
    from oakum_service.config import Settings
    from oakum_service.db.engine import check_schema, open_engine
    from oakum_service.errors import ServiceError

    try:
        engine = open_engine(Settings().database)
        if check:
            check_schema(engine)
    except ServiceError as error:
        raise CommandError(str(error)) from error
    return engine
