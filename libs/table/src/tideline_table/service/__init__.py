"""Table services: plans as pure functions from state to an immutable document, and the bodies of their tasks.

Appending to the log and choosing when to run does not belong here; see `table` and the planner.
"""
