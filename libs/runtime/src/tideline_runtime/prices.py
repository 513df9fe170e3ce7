"""Prices of requests, processor time and rewritten bytes, and what usage costs a month at these prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

DAY_S = 86_400.0
MONTH_DAYS = 30

LIST_PRICES: Mapping[str, float] = {
    "read": 0.0004,
    "open": 0.0004,
    "head": 0.0004,
    "list": 0.005,
    "write": 0.005,
    "delete": 0.0,
    "processor": 0.04048,
    "rewritten": 0.0,
}
"""US dollars: a thousand requests of each kind, an hour of a processor, a gigabyte (10^9 bytes) rewritten.

List prices of Amazon S3 Standard and AWS Fargate (Linux on x86) in us-east-1; compare them with the list of your provider.
"""
REQUEST_KINDS = ("read", "open", "head", "list", "write", "delete")


def _whole(given: Mapping[str, float]) -> dict[str, float]:
    unknown = sorted(given.keys() - LIST_PRICES.keys())
    if unknown or not all(math.isfinite(price) and price >= 0 for price in given.values()):
        raise ValueError(f"prices of at least 0, by the names {', '.join(LIST_PRICES)}")
    return {**LIST_PRICES, **given}


Prices = Annotated[dict[str, float], AfterValidator(_whole)]
"""A price for each name of `LIST_PRICES`; a name that is not given has its list price."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a table or the services used in a day. `requests` has the requests by kind, None if no service told them."""

    requests: Mapping[str, float] | None = None
    rewritten_bytes: float = 0.0
    processor_s: float = 0.0

    def month(self, prices: Mapping[str, float]) -> float:
        """Return the money that 30 such days cost. Requests that are not known cost nothing here."""
        asked = sum(count * request_price(prices, kind) for kind, count in (self.requests or {}).items())
        moved = self.rewritten_bytes * prices["rewritten"] / 1e9
        return MONTH_DAYS * (asked + moved + self.processor_s * processor_price(prices))


def request_price(prices: Mapping[str, float], kind: str) -> float:
    """Return the price of one request of a kind."""
    return prices[kind] / 1000


def processor_price(prices: Mapping[str, float]) -> float:
    """Return the price of a second of one processor."""
    return prices["processor"] / 3600
