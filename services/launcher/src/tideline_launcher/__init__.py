"""The launcher: starts Spark applications for plans, watches them, retries plans, and gives up after a maximum number of attempts.

A requested plan on the timeline is the command to run it. The launcher plans nothing and handles no rows.
"""
