"""Tables of tests/fixtures, unpacked."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[2] / "fixtures"


def names(folder: str) -> list[str]:
    return sorted(p.stem for p in (FIXTURES / folder).glob("*.zip"))


def unpacked(folder: str, name: str, target: Path) -> Path:
    """The base path of an unpacked table. Modification times are those of the unpacking."""
    with zipfile.ZipFile(FIXTURES / folder / f"{name}.zip") as archive:
        archive.extractall(target, [n for n in archive.namelist() if "__MACOSX" not in n])
    # The metadata table has properties of its own, deeper down.
    return min(target.glob("**/.hoodie/hoodie.properties"), key=lambda path: len(path.parts)).parents[1]


def expected(folder: str, name: str) -> dict[str, Any]:
    return dict(json.loads((FIXTURES / folder / f"{name}.expected.json").read_text()))
