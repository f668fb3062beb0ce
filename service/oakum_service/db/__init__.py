"""The database: tables, engine, migrations, the event log and the controller's lease. Nothing here takes
decisions."""
