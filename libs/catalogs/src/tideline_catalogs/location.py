"""Catalogs by URL, and tables by their names in them."""

from __future__ import annotations

import re
from contextlib import closing
from urllib.parse import urlsplit

from tideline_catalogs.catalog import Catalog, CatalogRefused
from tideline_catalogs.registration import is_hudi, path_of
from tideline_table.errors import InvalidOption, TableNotFound

_PORT = 9083
_EXPECTED = "hms://host:port of a Hive metastore, or glue://region of AWS Glue"
_GLUE = re.compile(r"glue://([a-z0-9-]+)(?:/([0-9]{12}))?/?")


def check_catalog(url: str) -> tuple[str, int]:
    """Return host and port of the metastore that a URL names. Raises `InvalidOption`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidOption(f"catalog {url!r}: {error}", expected=_EXPECTED) from error
    if parts.scheme not in ("hms", "thrift") or not host or parts.path.strip("/") or parts.query or parts.username:
        raise InvalidOption(f"catalog {url!r}", expected=_EXPECTED)
    return host, port or _PORT


def open_catalog(url: str) -> Catalog:
    """Return the catalog at `hms://host:port` or `glue://region`, with `/account` for the catalog of another one.

    It connects at its first call. Raises `InvalidOption`, `MissingExtra`, and `CatalogRefused` for a region that AWS does not have.
    """
    if found := _GLUE.fullmatch(url):
        from tideline_catalogs.glue import Glue

        return Glue(found[1], found[2] or "")
    host, port = check_catalog(url)
    from tideline_catalogs.metastore import HiveMetastore

    return HiveMetastore(host, port)


def locate(name: str, url: str) -> str:
    """Return the base path of the table that a catalog holds as `database.table`.

    Raises `TableNotFound`, `CatalogRefused` if the table is not one of Hudi, `CatalogAway`, `InvalidOption`.
    """
    database, dot, table = name.lower().partition(".")
    if not database or not dot or not table or "." in table:
        raise InvalidOption(f"table {name!r} of a catalog", expected="database.table")
    with closing(open_catalog(url)) as catalog:
        found = catalog.table(database, table)
    if found is None:
        raise TableNotFound(f"no table {name} in catalog {url}", remedy="tideline catalog sync registers it")
    if not is_hudi(found.parameters, found.input_format):
        raise CatalogRefused(
            f"table {name} in catalog {url} is no table of Hudi", expected="a table that Hudi or Tideline registered"
        )
    return path_of(found.location)
