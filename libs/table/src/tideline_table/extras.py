"""The optional parts of the distribution, its extras: which of them an import needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from tideline_table.errors import MissingExtra

DISTRIBUTION = "tideline-hudi"
"""The name of the distribution in registries and in `pip install`."""
Extra = Literal["sql", "spark", "redis", "kafka", "services", "kubernetes", "catalogs", "console", "aws", "zookeeper"]


@contextmanager
def extra(name: Extra) -> Iterator[None]:
    """Import inside what the extra `name` installs. Raises `MissingExtra` if a package of others is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0].startswith("tideline"):
            raise
        raise MissingExtra(error.name, name, f"pip install '{DISTRIBUTION}[{name}]'") from error
