"""Settings of `tideline-catalog`."""

from __future__ import annotations

from typing import ClassVar

from tideline_runtime.settings import ServiceSettings, setting


class CatalogSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "catalog"

    url: str = setting(
        "",
        unit="-",
        description="The catalog in which a table is registered, `hms://host:port` or `glue://region`; empty: in none. Rules of "
        "the policy file choose the tables, or leave some out.",
        per_table=True,
    )
    database: str = setting(
        "default",
        unit="-",
        description="The database there. It is created if it is missing.",
        per_table=True,
        pattern=r"^[A-Za-z0-9_]{1,128}$",
    )
    name: str = setting(
        "{name}",
        unit="-",
        description="The name there; `{name}` is the table's own name. After a change the entries with the former name stay.",
        per_table=True,
        pattern=r"^[A-Za-z0-9_.{}-]{1,128}$",
    )
