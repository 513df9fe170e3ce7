"""Indexes: which file group holds a record key."""

from tideline_table.index.simple import Location, SimpleIndex

__all__ = ["Location", "SimpleIndex"]
