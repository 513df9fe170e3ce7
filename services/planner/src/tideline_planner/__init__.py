"""The planner: decides which table services a table needs and publishes their plans on the timeline.

`policy` decides purely; a requested plan on the timeline is the command to run it. Running plans does not belong here.
"""
