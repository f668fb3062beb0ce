"""What the database's JSON columns hold: frozen values, free of SQLAlchemy, that rows carry to their readers.

`db/json_columns.py` translates them to JSON and back. A field may be added with a default, so that older rows stay
readable; no field is renamed or dropped without a migration of the rows.
"""
