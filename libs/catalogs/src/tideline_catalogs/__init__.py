"""Catalogs: registers tables by Apache Hudi's conventions, so that engines find them by name, and finds tables by name.

`registration` and `hive_types` decide what a catalog should hold, without I/O; `syncing` compares it with what it holds;
`metastore` speaks to a Hive metastore, `glue` to AWS Glue.
"""

from tideline_catalogs.catalog import Catalog, CatalogAway, CatalogMoved, CatalogRefused, Column, Partition, Registered
from tideline_catalogs.location import check_catalog, locate, open_catalog
from tideline_catalogs.registration import Names
from tideline_catalogs.syncing import SyncReport, drop_table, sync_table
