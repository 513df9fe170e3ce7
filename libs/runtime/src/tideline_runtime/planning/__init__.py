"""Which plans the planner publishes, as pure decisions: what each table needs, whether its policy lets it, and in which order.

    examine(service, table.view(), policy, thresholds, ledger, now)     # Demand: a plan is due and may be published; Held:
    why not arbitrate(demands, fleet, spent_bytes, pending_plans, now, shrink)    # which demands are served now, and why others
    wait

`tideline status`, `tideline why` and `tideline policy test` call the same functions as the planner. Two modules read storage:
`ledger.Ledgers` reads from the table logs what was rewritten in the last day, and `replay` reads the logs that it replays.
"""

from tideline_runtime.planning.arbitration import Choice, arbitrate, score
from tideline_runtime.planning.demand import Demand, Held, HeldBy, Thresholds
from tideline_runtime.planning.examination import examine
from tideline_runtime.planning.ledger import Ledger, Ledgers
