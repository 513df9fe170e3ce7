"""Imported before PySpark by the modules that users import: says which extra is missing."""

from tideline_table.extras import extra

with extra("spark"):
    import pandas  # noqa: F401, ICN001
    import pyspark  # noqa: F401
