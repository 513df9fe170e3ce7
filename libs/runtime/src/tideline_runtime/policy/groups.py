"""Parts of the reading of a file that names tables by patterns: its bytes, its model, its groups of tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tideline_runtime.policy.document import MAX_BYTES, Document, Place, parse_document, place_text
from tideline_runtime.policy.errors import PolicyRefused, Problem
from tideline_runtime.policy.model import Scope
from tideline_runtime.policy.selector import Group, is_uid
from tideline_runtime.setting_errors import expectation, shortened
from tideline_runtime.table_search import TablePattern
from tideline_table.errors import TidelineError

_ModelT = TypeVar("_ModelT", bound=BaseModel)


def read_file(path: Path) -> bytes:
    """Return the content of a file, cut behind `MAX_BYTES`. Raises `PolicyRefused` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyRefused(str(path), [Problem(1, "", str(error.strerror), "a readable file")]) from None


def parse_file(
    content: bytes | str, source: str, model: type[_ModelT], what: str = "a policy", page: str = "docs/policies.md"
) -> tuple[Document, _ModelT]:
    """Return the values of a file and its model. `source` names the file in messages, `what` its content, `page` describes it.

    Raises `PolicyRefused` with every problem.
    """
    if len(content) > MAX_BYTES:
        raise PolicyRefused(source, [Problem(1, "", f"more than {MAX_BYTES} bytes", "a smaller file")])
    try:
        text = content.decode() if isinstance(content, bytes) else content
    except UnicodeDecodeError as error:
        raise PolicyRefused(source, [Problem(1, "", f"no UTF-8 at byte {error.start}", "text in UTF-8")]) from None
    document = parse_document(text, source)
    try:
        # As JSON, because pydantic's strict mode for JSON accepts a list for a tuple and text for a time, which JSON cannot
        # express.
        return document, model.model_validate_json(json.dumps(document.values))
    except ValidationError as error:
        problems = [_problem(document, e, what, page) for e in error.errors(include_url=False)]
        raise PolicyRefused(source, problems) from None


def _problem(document: Document, error: ErrorDetails, what: str, page: str) -> Problem:
    place = tuple(part for part in error["loc"] if not isinstance(part, str) or not part.startswith(("function-", "constrained-")))
    line, shown = document.line(place), place_text(place)
    if error["type"] == "extra_forbidden":
        return Problem(line, shown, f"is no field of {what}", f"a field of {page}")
    if error["type"] == "missing":
        return Problem(line, shown, "is missing", "a value")
    return Problem(line, shown, f"is {shortened(repr(error['input']))}", expectation(error))


class GroupReader:
    """Reads groups of tables from a document, and keeps the problems of their patterns in `problems`."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def group(self, scope: Scope, place: Place, tables: Sequence[str]) -> Group:
        """Return the group of tables that a part of the file names, and keep the problems of its patterns."""
        single = (self._table(text, (*place, "tables", at)) for at, text in enumerate(tables))
        return Group(
            tuple(self._patterns(scope.paths, (*place, "paths"))),
            tuple(self._patterns(scope.exclude, (*place, "exclude"))),
            frozenset(text for text in single if text),
        )

    def _patterns(self, texts: Sequence[str], place: Place) -> Iterator[TablePattern]:
        for at, text in enumerate(texts):
            found = self._pattern(text, (*place, at))
            if found is not None:
                yield found

    def _pattern(self, text: str, place: Place) -> TablePattern | None:
        if "/" not in text:
            # Each service would resolve a relative folder against its own working directory.
            self.refuse(place, f"is {shortened(repr(text))}", "an absolute path, a file: URI or s3://bucket/path, with * and ?")
            return None
        try:
            return TablePattern.parse(text)
        except TidelineError as error:
            self.refuse(place, f"is {shortened(repr(text))}", error.expected)
            return None

    def _table(self, text: str, place: Place) -> str:
        if is_uid(text):
            return text
        if "/" not in text:
            self.refuse(place, f"is {shortened(repr(text))}", "a base path or a uid: names of tables are not unique")
            return ""
        found = self._pattern(text, place)
        if found is not None and found.parts:
            self.refuse(place, f"is {shortened(repr(text))}", "the base path of one table, without * and ?")
            return ""
        return found.root if found is not None else ""

    def refuse(self, place: Place, found: str, expected: str) -> None:
        """Keep a problem of the value at `place`."""
        self.problems.append(Problem(self.document.line(place), place_text(place), found, expected))
