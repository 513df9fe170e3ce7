"""Imported first by the entry of all services: says which extra is missing."""

from tideline_table.extras import extra

with extra("services"):
    import anyio  # noqa: F401
    import prometheus_client  # noqa: F401
    import tornado  # noqa: F401
