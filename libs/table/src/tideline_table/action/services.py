"""All table services: a new one has a package with its object, and its line here."""

from __future__ import annotations

from tideline_table.action.archival.service import Archiving
from tideline_table.action.clean.service import Clean
from tideline_table.action.clustering.service import Clustering
from tideline_table.action.compaction.service import Compaction
from tideline_table.action.decision import TableService
from tideline_table.action.log_compaction.service import LogCompaction
from tideline_table.action.rollback.service import Rollback
from tideline_table.action.service import Rewrite, Service

_IN_ORDER: tuple[Service, ...] = (Rollback(), Compaction(), LogCompaction(), Clustering(), Clean(), Archiving())
SERVICES: dict[TableService, Service] = {service.name: service for service in _IN_ORDER}
"""In the order in which each service helps the next one: dead writers first, because they hold back cleaning and archival;
compaction before clustering, which then reads no log files. A log compaction merges what compaction leaves."""
REWRITES: dict[TableService, Rewrite] = {name: service for name, service in SERVICES.items() if isinstance(service, Rewrite)}
"""The services whose plans the planner publishes and the launcher runs."""
