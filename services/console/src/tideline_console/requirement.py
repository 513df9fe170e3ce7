"""Imported first by the entries of the console: says which extra is missing."""

import tideline_runtime.requirement  # noqa: F401
from tideline_table.extras import extra

with extra("console"):
    import authlib  # noqa: F401
    import httpx2  # noqa: F401
    import itsdangerous  # noqa: F401
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
