"""Apply each weakening and run its tests, which must fail: python -m tests.weakenings [part of a name]."""

from __future__ import annotations

import sys

from tests.weakenings.catalogue import WEAKENINGS
from tests.weakenings.proof import is_noticed

if __name__ == "__main__":
    chosen = [name for name in WEAKENINGS if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]
    missed = []
    for name in chosen:
        noticed = is_noticed(WEAKENINGS[name])
        print("noticed" if noticed else "MISSED ", name, flush=True)
        missed += [] if noticed else [name]
    sys.exit(1 if missed or not chosen else 0)
