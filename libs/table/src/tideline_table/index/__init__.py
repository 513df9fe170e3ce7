"""Indexes: which file group holds a record key."""

from tideline_table.index.scope import KeyScope
from tideline_table.index.simple import Location, SimpleIndex

__all__ = ["KeyScope", "Location", "SimpleIndex"]
