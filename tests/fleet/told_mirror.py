"""A mirror that looks at a table when a hint or a notification names it, when it takes a shard over, and otherwise once an hour."""

from __future__ import annotations

from tideline_mirror import pace
from tideline_mirror.__main__ import main

if __name__ == "__main__":
    # With a part of the time since the last step, a freshness of an hour would have a table that was just written looked at often.
    pace.QUIET_FRACTION = 1e9
    main()
