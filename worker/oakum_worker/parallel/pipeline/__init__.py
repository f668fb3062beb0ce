"""Trainers whose model is spread over several ranks, stage by stage.

`operations` says what a schedule is: data, without torch. Generators make schedules, `validation` checks and
`simulation` times them; engines run them, or run whatever message arrives. What a stage holds is moved between
ranks by parameter name, as generations change. Which ranks there are is decided elsewhere.
"""
