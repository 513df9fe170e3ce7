"""The table versions that this engine knows, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tideline_table.errors import CorruptMetadata, InvalidOption, UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.version6 import VERSION_6, Version6
from tideline_table.hudi.version8 import FIRST_VERSION, Version8

READABLE = (2, 3, 4, 5, 6, 8, 9)
WRITTEN = VERSION_6
"""The format of new tables unless another one is asked for: all readers know it."""
CREATED = (6, 8, 9)
"""The versions of tables that are written, exclusive or shared with Apache Hudi's writers."""
UPGRADED = Version8.of({}, FIRST_VERSION)
"""Where Apache Hudi moves the timeline of a table when it upgrades it."""


def moved_to(form: TableFormat) -> TableFormat:
    """Return the format whose timeline an upgrade or downgrade by Apache Hudi gives to a table of this format."""
    return UPGRADED if form.layout == Version6.layout else VERSION_6


def format_of(properties: Mapping[str, str]) -> TableFormat:
    """Return the format of a table with these properties, by its timeline layout: an upgrade changes it before the version.

    Raises `UnsupportedTable` for layouts other than 1 and 2, `UnsafePath` for folders outside a table.
    """
    text = properties.get(p.VERSION, "")
    version = int(text) if text.isascii() and text.isdecimal() else 0
    layout = properties.get(p.LAYOUT) or (Version8 if version >= FIRST_VERSION else Version6).layout
    for form in (Version6, Version8):
        if layout == form.layout:
            return form.of(properties, version)
    raise UnsupportedTable(f"timeline layout {layout!r}", expected="layout 1 or 2")


def format_to_create(version: int) -> TableFormat:
    """Return the format of a new table of a version; 0: the default. Raises `InvalidOption`."""
    if version in (0, WRITTEN.version):
        return WRITTEN
    if version not in CREATED:
        raise InvalidOption(f"table version {version}", expected=f"{', '.join(map(str, CREATED[:-1]))} or {CREATED[-1]}")
    return Version8.of({}, version)


def created_format(declared: Mapping[str, str]) -> TableFormat:
    """Return the format that a table had when its identity was made, by the properties that the identity holds.

    Tideline's tables have that of their creation; one of Apache Hudi's, which an upgrade may have made, that of its sharing.
    """
    return format_to_create(int(declared.get(p.VERSION) or declared.get(p.INITIAL_VERSION) or 0))


def declared_version(version: int) -> dict[str, str]:
    """Return the property by which the identity of a shared table tells its version to `created_format`."""
    return {p.VERSION: str(version)}


def says_more_than_version(declared: Iterable[str]) -> bool:
    """Return whether an identity declares other properties than the version, as that of a table which Tideline created does."""
    return any(name != p.VERSION for name in declared)


def version_of(properties: Mapping[str, str]) -> int:
    """Return the table version. Raises `CorruptMetadata` if the properties say none."""
    text = properties.get(p.VERSION, "")
    if not (text.isascii() and text.isdecimal()):
        older = (
            "" if text else "; if a release of Apache Hudi before 0.6 made the table, which wrote no version, let Hudi upgrade it"
        )
        raise CorruptMetadata(
            f"{p.PROPERTIES_PATH} with {p.VERSION}={text!r}", expected="a number", remedy=f"restore the file{older}"
        )
    return int(text)


def check_readable(name: str, version: int) -> None:
    """Raise `UnsupportedTable` for a table `name` of a version that cannot be read."""
    if version not in READABLE:
        raise UnsupportedTable(
            f"table {name!r} has version {version}",
            expected=f"version {', '.join(map(str, READABLE[:-1]))} or {READABLE[-1]}",
            remedy="read it with the Apache Hudi release that made it, or let Apache Hudi upgrade or downgrade it to version "
            f"{WRITTEN.version}",
        )


def has_version(version: int, form: TableFormat) -> bool:
    """Return whether a version is that of a format."""
    return version == form.version


def check_writable(name: str, version: int) -> None:
    """Raise `UnsupportedTable` for a table `name` of a version that is not written."""
    if version not in CREATED:
        raise UnsupportedTable(
            f"table {name!r} has version {version}",
            expected=f"version {', '.join(map(str, CREATED[:-1]))} or {CREATED[-1]} for writing",
            remedy="read it, write it with the Apache Hudi release that made it, or let Apache Hudi bring it to version "
            f"{WRITTEN.version}",
        )
