"""Policies per table: what services do to each table, when, how much, and why. docs/policies.md describes the file.

    policies = read_policies(path)                       # raises PolicyRefused with the line of each problem
    own = policies.of(base_path, uid)                    # TablePolicy; raises ContradictoryRules
    own.wants(service, now)                              # bool: switched on, and no pause stops it at `now` (see `paused_at`)
    own.options, own.settings("planner")                 # engine options and settings of a service that rules give
    own.priority, own.bytes_per_day, own.windows, own.objectives, own.pause
    own.given["options.hoodie.cleaner.commits.retained"].origin   # which rule, on which line
    LivePolicies(path, clock, metrics).current()         # reloads the file; an invalid one leaves the last good one in force

`Policies` is a value: resolving needs no I/O. A field is a dotted name (`options.<key>`, `settings.<service>.<name>`, `priority`,
`budget.bytes_per_day`, ...). The narrowest rule that gives a field decides about it: a single table, then tags, then path patterns
(the longest folder without wildcards first), then `defaults`. HudiTable resources are narrower than every rule of the file.
"""

from tideline_runtime.policy.errors import ContradictoryRules, FeedingRefused, PolicyRefused, Problem
from tideline_runtime.policy.live import LivePolicies
from tideline_runtime.policy.reading import parse_policies, read_policies
from tideline_runtime.policy.resolution import Fleet, Policies
from tideline_runtime.policy.table_policy import Pause, TablePolicy
from tideline_runtime.policy.window import Window, is_open, next_change
