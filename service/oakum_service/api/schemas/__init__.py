"""The documents of the REST API, a module for each noun. Times are Unix seconds (`*_at`), durations seconds
(`*_s`).

What is here validates itself and queries nothing, so that clients read the documents without a database;
`api.views` makes them from rows.
"""
