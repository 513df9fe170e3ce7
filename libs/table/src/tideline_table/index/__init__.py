"""Indexes: which file group holds a record key."""

from tideline_table.index.bucket import BucketIndex, Engine
from tideline_table.index.hash_ring import HashRing
from tideline_table.index.partition_rules import PartitionRules
from tideline_table.index.ring_store import RingStore
from tideline_table.index.scope import RECORD_INDEX, KeyScope, asks_record_index, key_hashes, moves_rows
from tideline_table.index.simple import BucketPlace, Location, PlaceT, SimpleIndex
