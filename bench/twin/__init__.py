"""The twin: the whole service in virtual time, beside a simulated scheduler and simulated agents."""
