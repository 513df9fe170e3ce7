"""All stories."""

from __future__ import annotations

from tests.conformance.stories import layouts, life, merging, schemas, statements
from tests.conformance.stories.story import Story

STORIES: tuple[Story, ...] = (*life.STORIES, *layouts.STORIES, *schemas.STORIES, *statements.STORIES, *merging.STORIES)
