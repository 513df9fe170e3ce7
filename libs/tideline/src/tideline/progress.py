"""`Progress`, the positions that a pipeline keeps in the commits of its target."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tideline_table.errors import InvalidOption
from tideline_table.log import ProgressStep


class Progress(Mapping[str, Any]):
    """The positions that the last commit under `name` stored, by source: numbers, texts or other JSON. Empty before the first.

    `table.inspect.progress(name)` returns them.

    A write with `progress=done.moved(...)` stores rows and positions in one commit. It raises `Conflict`, and writes nothing, if
    another process has moved the progress since `done` was read: read it again, and continue from there.
    """

    def __init__(self, name: str, held: str | None) -> None:
        self.name = name
        self._held = held
        try:
            self._positions = {} if held is None else dict(json.loads(held))
        except (ValueError, TypeError):
            raise InvalidOption(f"progress {name!r} with the value {held!r}", expected="a JSON object of positions") from None

    def __getitem__(self, source: str) -> Any:
        return self._positions[source]

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __repr__(self) -> str:
        return f"<tideline.Progress {self.name} at {self._positions}>"

    def moved(self, positions: Mapping[str, Any] | None = None, /, **more: Any) -> ProgressStep:
        """Return the step to these positions, for the argument `progress` of a write. Positions of other sources stay.

        Raises `InvalidInput` for values that are no JSON, for a name of other characters than letters, digits, `_`, `.`, `:` and
        `-`, and for more than 256 KiB.
        """
        try:
            value = json.dumps({**self._positions, **(positions or {}), **more}, separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError) as error:
            raise InvalidOption(f"positions that are no JSON ({error})", expected="numbers and texts by source") from None
        return ProgressStep(self.name, self._held, value)
