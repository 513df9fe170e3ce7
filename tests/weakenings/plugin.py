"""Pytest plugin: one source file of the product is compiled with one replacement. The file itself stays as it is.

`-p tests.weakenings.plugin` with `TIDELINE_WEAKENED`: a JSON object of `file` (path in the repository), `code` and `instead`.
"""

from __future__ import annotations

import json
import os
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

VARIABLE = "TIDELINE_WEAKENED"
REPOSITORY = Path(__file__).parents[2]


def weakened(file: str, code: str, instead: str) -> str:
    """Return the source of `file` with `instead` in place of `code`, which it must contain once."""
    source = (REPOSITORY / file).read_text()
    if source.count(code) != 1:
        raise ValueError(f"{file} has this code {source.count(code)} times, not once: {code!r}")
    return source.replace(code, instead)


def _install(file: str, code: str, instead: str) -> None:
    path, source, get_code = REPOSITORY / file, weakened(file, code, instead), SourceFileLoader.get_code

    def get(loader: SourceFileLoader, name: str) -> CodeType | None:
        is_target = Path(loader.path).resolve() == path
        return compile(source, loader.path, "exec", dont_inherit=True) if is_target else get_code(loader, name)

    SourceFileLoader.get_code = get  # type: ignore[method-assign]


if VARIABLE in os.environ:
    _install(**json.loads(os.environ[VARIABLE]))
