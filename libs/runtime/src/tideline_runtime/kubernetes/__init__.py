"""HudiTable resources of Kubernetes as a source of tables. Only `api` talks to the API server.

This package needs the extra `kubernetes`; `tideline_runtime.table_source` loads it by name when a setting asks for it.
"""

from tideline_runtime.kubernetes.hudi_tables import HudiTables, open_hudi_tables
