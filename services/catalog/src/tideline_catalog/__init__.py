"""`tideline-catalog`: registers tables in catalogs as their commits arrive, so that engines find them by name.

What is registered, and how far, stands in the catalog itself (`tideline_catalogs`); events only say which tables are due.
"""
