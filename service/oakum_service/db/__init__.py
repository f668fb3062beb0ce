"""The database: models, engine, migrations. Nobody outside writes SQL; nothing here decides."""
