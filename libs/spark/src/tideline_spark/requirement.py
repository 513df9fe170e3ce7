"""Imported before PySpark by the modules that users import: says which extra is missing."""

from importlib.util import find_spec

from tideline_table.extras import extra

with extra("spark"):
    import pyspark  # noqa: F401

    # Half a second of a processor to import: Spark does so where it needs it, which table services never do.
    if find_spec("pandas") is None:
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
