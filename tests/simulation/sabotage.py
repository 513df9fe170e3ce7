"""Taking a protection of production code away for one history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.simulation.world import World

Patch = tuple[Any, str, Any]


def sabotage(*patches: Patch) -> Callable[[World], Any]:
    """Puts something else in the place of each target's attribute."""

    @contextmanager
    def sabotaged(world: World) -> Iterator[None]:
        with ExitStack() as stack:
            for target, name, instead in patches:
                stack.enter_context(patch.object(target, name, instead))
            yield

    return sabotaged
