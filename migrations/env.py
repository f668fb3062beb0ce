"""Alembic's entry: migrates over the engine it is handed, or over OAKUM_DATABASE_URL."""

from alembic import context

from oakum_service.config import Settings
from oakum_service.db.engine import open_engine
from oakum_service.db.models.base import Base

engine = context.config.attributes.get("engine") or open_engine(Settings().database)
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
