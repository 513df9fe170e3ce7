"""All stories."""

from __future__ import annotations

from tests.conformance.stories import layouts, life, merging, schemas, statements
from tests.conformance.stories.story import Story

MODULES = (life, layouts, schemas, statements, merging)
STORIES: tuple[Story, ...] = tuple(story for module in MODULES for story in module.STORIES)
