"""The planner: decides which table services a table needs and publishes their plans on the timeline. It runs no plans.

Decisions are pure functions: those of the engine (`tideline_table.action`), and those by policies
(`tideline_runtime.planning`). A requested plan on the timeline is the command to run it.
"""
