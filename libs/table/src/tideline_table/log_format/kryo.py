"""Deletions that are serialised by Kryo 4: delete blocks of versions 1 and 2, which Apache Hudi wrote before 0.14 (only read).

Version 1 is an array of record keys, version 2 one of deletions, which have an ordering value each. Kryo writes the name of a class
where it first occurs, and the number of the object for objects that occurred before. Only these classes are known here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import date
from decimal import Context, Decimal
from typing import Any

from tideline_table.errors import CorruptMetadata, UnsupportedTable

KRYO_VERSIONS = (1, 2)
Deletion = tuple[str, str | None, str | None, Any]
"""Record key, partition path, class of the ordering value (None for null), value (of dates in days, of times in microseconds)."""

_KEY = "org.apache.hudi.common.model.HoodieKey"
_DELETION = "org.apache.hudi.common.model.DeleteRecord"
# Kryo's own numbers for classes, and those of Avro's Utf8 in Apache Hudi 0.12.1 and 0.13.
_NUMBERED = {2: "Integer", 3: "String", 4: "Float", 5: "Boolean", 9: "Long", 10: "Double", 12: "Utf8", 29: "Utf8"}
_LAST_OF_ASCII = re.compile(rb"[\x80-\xff]")
_DAY_MS = 86_400_000
_DIGITS = 76
# A text that occurs many times is stored once. What all texts take in memory is bounded by what is stored.
_EXPANSION, _EXPANSION_FREE = 256, 64 << 20


def read_kryo(data: bytes, version: int) -> list[Deletion]:
    """Return the deletions of a block. Those of version 1 have the int 0 as ordering value, as in Apache Hudi."""
    try:
        return _Reader(data).deletions(version)
    except (IndexError, UnicodeDecodeError) as error:
        raise _malformed("they end too early" if isinstance(error, IndexError) else "text that is no UTF-8") from None


def _malformed(what: str) -> CorruptMetadata:
    return CorruptMetadata(f"malformed deletions: {what}", expected="an array of deletions as Apache Hudi serialises it")


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._names: list[str] = []
        self._seen: list[tuple[str, Any]] = []
        self._plain: dict[str, Callable[[], Any]] = {
            "Integer": lambda: _signed(self._number()),
            "Long": lambda: _signed(self._long()),
            "Float": lambda: struct.unpack(">f", self._take(4))[0],
            "Double": lambda: struct.unpack(">d", self._take(8))[0],
            "Boolean": lambda: self._take(1) != b"\0",
        }
        self._referenced: dict[str, Callable[[], Any]] = {
            "String": self._text,
            "Utf8": lambda: self._take(self._number() - 1).decode(),
            "java.math.BigDecimal": self._decimal,
            # Midnight in the time zone of the writer, which is unknown: the nearest day in UTC.
            "java.sql.Date": lambda: (self._milliseconds() + _DAY_MS // 2) // _DAY_MS,
            "java.time.LocalDate": self._local_date,
            "java.sql.Timestamp": lambda: self._milliseconds() * 1000,
        }

    def deletions(self, version: int) -> list[Deletion]:
        item = self._key if version == 1 else self._deletion
        found = self._object(f"[L{_KEY if version == 1 else _DELETION};", lambda: self._items(item))
        if self._at != len(self._data):
            raise CorruptMetadata("bytes after the list of deletions", expected="one list")
        return list(found)

    def _items(self, item: Callable[[], Deletion]) -> list[Deletion]:
        count = self._number() - 1
        if not 0 <= count <= len(self._data) - self._at:
            raise _malformed(f"{count} entries")
        found, room = [], _EXPANSION * len(self._data) + _EXPANSION_FREE
        for _ in range(count):
            found.append(item())
            room -= sum(len(text) for text in found[-1] if isinstance(text, str))
            if room < 0:
                raise _malformed(f"texts that repeat to more than {_EXPANSION} times the size of the block")
        return found

    def _deletion(self) -> Deletion:
        key, (kind, value) = self._object(_DELETION, lambda: (self._key(), self._ordering_value()))
        return (*key[:2], kind, value)

    def _key(self) -> Deletion:
        path, key = self._object(_KEY, lambda: (self._nullable_text(), self._nullable_text()))
        if key is None:
            raise CorruptMetadata("a deletion without a record key", expected="a key in every deletion")
        return key, path, "Integer", 0

    def _ordering_value(self) -> tuple[str | None, Any]:
        kind = self._class()
        if kind in self._plain:
            return kind, self._plain[kind]()
        if kind in self._referenced:
            return kind, self._referred(kind, self._referenced[kind], self._number())
        if kind is None:
            return None, None
        raise UnsupportedTable(f"an ordering value of class {kind[:80]!r}", expected=", ".join((*self._plain, *self._referenced)))

    def _nullable_text(self) -> str | None:
        number = self._number()
        return None if number == 0 else str(self._referred("String", self._text, number))

    def _object(self, kind: str, read: Callable[[], Any]) -> Any:
        if (found := self._class()) is None:
            raise _malformed("null in place of an object")
        if found != kind:
            raise UnsupportedTable(f"deletions with an object of class {found[:80]!r}", expected=kind)
        return self._referred(kind, read, self._number())

    def _class(self) -> str | None:
        if (number := self._number()) != 1:
            return _NUMBERED.get(number, f"number {number}") if number else None
        if (number := self._number()) == len(self._names):
            self._names.append(self._text())
        return self._names[number]

    def _referred(self, kind: str, read: Callable[[], Any], number: int) -> Any:
        """Return the object that occurs here if `number` is 1, or occurred before. Objects are numbered when they begin."""
        if number == 1:
            place = len(self._seen)
            self._seen.append(("", None))
            self._seen[place] = (kind, read())
            return self._seen[place][1]
        if number == 0 or self._seen[number - 2][0] != kind:
            raise _malformed(f"a reference to object {number - 2}, which is no {kind}")
        return self._seen[number - 2][1]

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self._at:
            raise IndexError(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, low: int = 0, shift: int = 0) -> int:
        """Return a number of up to 32 bits in groups of seven, the lowest first; `low` are the bits that are known already."""
        while shift < 32:
            byte = self._data[self._at]
            self._at += 1
            low |= (byte & 0x7F) << shift
            if byte < 0x80 and not low >> 32:
                return low
            shift += 7
        raise _malformed("a number of more than 32 bits")

    def _long(self) -> int:
        found = 0
        for shift in range(0, 56, 7):
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
        return found | self._take(1)[0] << 56

    def _milliseconds(self) -> int:
        return (self._long() ^ (1 << 63)) - (1 << 63)

    def _text(self) -> str:
        first = self._data[self._at]
        if first < 0x80:  # ASCII: the last character has the high bit
            last = _LAST_OF_ASCII.search(self._data, self._at)
            found = self._take(last.start() - self._at if last else len(self._data))
            return (found + bytes((self._take(1)[0] & 0x7F,))).decode("ascii")
        self._at += 1
        count = (self._number(first & 0x3F, 6) if first & 0x40 else first & 0x3F) - 1
        if not 0 <= count <= len(self._data) - self._at:
            raise _malformed(f"a text of {count} characters")
        end = self._at + count
        if not self._data[self._at : end].isascii():
            end = self._at
            for _ in range(count):  # of UTF-16, each as up to three bytes
                end += 1 + (self._data[end] >= 0xC0) + (self._data[end] >= 0xE0)
        units = self._take(end - self._at).decode("utf-8", "surrogatepass")
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")

    def _decimal(self) -> Decimal:
        unscaled = int.from_bytes(self._take(self._number() - 1), "big", signed=True)
        scale = _signed(self._number())
        if abs(unscaled) >= 10**_DIGITS or abs(scale) > _DIGITS:
            raise UnsupportedTable(f"a deletion with a decimal of more than {_DIGITS} digits", expected="fewer digits")
        return Decimal(unscaled).scaleb(-scale, Context(prec=_DIGITS))

    def _local_date(self) -> int:
        year, month, day = self._number(), self._take(1)[0], self._take(1)[0]
        try:
            return (date(year, month, day) - date(1970, 1, 1)).days
        except (ValueError, OverflowError) as error:
            raise _malformed(f"date {year}-{month}-{day}: {error}") from None
