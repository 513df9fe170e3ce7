"""The launcher: one Spark application per plan; starts, watches, retries it, and gives up after a bound.

A requested plan on the timeline is the command to run it. Deciding what to plan does not belong here, nor do rows.
"""
