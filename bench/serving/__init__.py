"""A service under load: the service in a process of its own, agents and users in another, and what is measured."""
