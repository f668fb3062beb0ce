"""`oakum token` and `oakum db`: what an admin does on the service's own machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from oakum_service.cli.app import CommandError, app, example

if TYPE_CHECKING:
    from sqlalchemy import Engine

SERVICE = "Service"

token_app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API tokens, on the service's machine.")
db_app = typer.Typer(no_args_is_help=True, help="Bring the database's schema up to date.")
app.add_typer(token_app, name="token", rich_help_panel=SERVICE)
app.add_typer(db_app, name="db", rich_help_panel=SERVICE)


@token_app.command("create", epilog=example("oakum token create alice --role user"))
def create(
    name: Annotated[str, typer.Argument(help="Whose token it is.")],
    role: Annotated[Literal["hook", "viewer", "user", "admin"], typer.Option(help="What it may do.")] = "user",
) -> None:
    """Make a token and print it; it is not stored and cannot be shown again."""
    if not (name.strip() and len(name) <= 63 and name.isprintable()):
        raise CommandError(f"{name!r} cannot be a token's name: give 1 to 63 printable characters")
    from oakum_service.api.auth import Role, create_token
    from oakum_service.db.engine import open_sessions

    with open_sessions(open_database()).begin() as session:
        typer.echo(create_token(session, name, Role[role.upper()]))


@token_app.command("list", epilog=example("oakum token list"))
def list_tokens(json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the tokens by name and role."""
    import json

    from sqlalchemy import select

    from oakum_service.db.engine import open_readers
    from oakum_service.db.models import ApiToken

    with open_readers(open_database()).begin() as session:
        rows = session.execute(select(ApiToken).order_by(ApiToken.created_at)).scalars().all()
    if json_output:
        tokens = [{"name": row.name, "role": row.role, "created_at": row.created_at} for row in rows]
        typer.echo(json.dumps({"tokens": tokens}))
        return
    for row in rows:
        typer.echo(f"{row.name:24} {row.role}")


@token_app.command("revoke", epilog=example("oakum token revoke alice"))
def revoke(name: Annotated[str, typer.Argument(help="Whose tokens.")]) -> None:
    """Revoke every token of that name."""
    from sqlalchemy import select

    from oakum_service.db.engine import open_sessions
    from oakum_service.db.models import ApiToken

    with open_sessions(open_database()).begin() as session:
        rows = session.execute(select(ApiToken).where(ApiToken.name == name)).scalars().all()
        if not rows:
            raise CommandError(f"there is no token named {name!r}: `oakum token list` shows them")
        for row in rows:
            session.delete(row)
    typer.echo(f"revoked {len(rows)} token{'s' * (len(rows) != 1)} of {name}")


@db_app.command("upgrade", epilog=example("OAKUM_DATABASE_URL=postgresql://oakum@db/oakum oakum db upgrade"))
def upgrade() -> None:
    """Bring the schema to the newest revision. SQLite is upgraded by `oakum serve` itself."""
    from oakum_service.db import engine
    from oakum_service.errors import ServiceError

    try:
        engine.upgrade(open_database(check=False))
    except ServiceError as error:
        raise CommandError(str(error)) from error
    typer.echo("the schema is up to date")


def open_database(*, check: bool = True) -> Engine:
    """The database that the settings name. Raises `CommandError`, with `check` also for an outdated schema."""
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
