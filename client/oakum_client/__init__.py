"""What talks to people: the `oakum` command, the REST API from Python and the demonstration.

No other package imports this one but `oakum`, the names for scripts. Most of it asks a service over REST, wherever
it runs; administrators' commands open the service's own parts in place: its settings, its database, its hooks.
"""
