"""Counts what a reader of the code pays for, and compares it with `scripts/ceilings.toml`.

`python scripts/check_ceilings.py [--lower]`.

Counts do not depend on the machine. One above its ceiling is an error; who has a reason to raise it does so in that file, with
the reason in the message of the commit. One that fell is reported, and `--lower` writes it down.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("libs/", "services/")
LONGEST_LINE = 132
KIND = re.compile(r"\b(?:is_exclusive|is_shared|has_log)\b")
SERVICE = re.compile(r"\bTableService\.([A-Z_]+)\b")
WRITTEN = re.compile(r"^(?!from ).*\bWRITTEN\b(?!,$)", re.MULTILINE)
ROOM = "tideline_table/hudi/"
MAY_ASK = ("libs/table/src/tideline_table/coordination/", "libs/table/src/tideline_table/table/facade.py")
"""Where it is decided what a kind of table can do."""

Texts = Mapping[str, str]


def texts_of(root: Path) -> dict[str, str]:
    """Return the Python files of a repository by path."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=root, capture_output=True, text=True, check=True
    )
    return {path: (root / path).read_text() for path in listed.stdout.splitlines() if (root / path).is_file()}


def product_lines(texts: Texts) -> int:
    """Lines of libs and services."""
    return sum(len(text.splitlines()) for path, text in texts.items() if path.startswith(PRODUCT))


def long_lines(texts: Texts) -> int:
    """Lines that are longer than the formatter is set to."""
    return sum(len(line) > LONGEST_LINE for text in texts.values() for line in text.splitlines())


def questions_for_the_kind_of_table(texts: Texts) -> int:
    """Uses of `is_exclusive`, `is_shared` and `has_log` outside coordination and the facade."""
    return sum(len(KIND.findall(text)) for path, text in texts.items() if path.startswith(PRODUCT) and not path.startswith(MAY_ASK))


def files_that_name_a_service(texts: Texts) -> int:
    """Files that name a table service outside the package of that service."""

    def names_another(path: str, text: str) -> bool:
        own = Path(path).parent.name
        return any(name.lower() != own for name in SERVICE.findall(text))

    return sum(names_another(path, text) for path, text in texts.items() if path.startswith(PRODUCT))


def uses_of_the_written_format(texts: Texts) -> int:
    """Uses of the one written table version where no table says its own (`tideline_table.hudi.formats.WRITTEN`)."""
    return sum(len(WRITTEN.findall(text)) for path, text in texts.items() if path.startswith(PRODUCT) and ROOM not in path)


def public_members() -> int:
    """Names that `tideline.Table` has for its users."""
    import tideline  # noqa: PLC0415 - the other counts need no import

    return sum(not name.startswith("_") for name in dir(tideline.Table))


def upsert_calls() -> dict[str, int]:
    """Calls of our own functions, and files that they are in, in an upsert of one row."""
    from scripts.measure_upsert import calls_of_upsert  # noqa: PLC0415 - the other counts need no import

    with tempfile.TemporaryDirectory() as folder:
        found = calls_of_upsert(folder + "/table")
    return {"calls_of_an_upsert": found.calls, "files_of_an_upsert": len(found.files)}


def counted(root: Path) -> dict[str, int]:
    """Return all counts by the name of their ceiling."""
    texts = texts_of(root)
    of_texts: tuple[Callable[[Texts], int], ...] = (
        product_lines,
        long_lines,
        questions_for_the_kind_of_table,
        files_that_name_a_service,
        uses_of_the_written_format,
    )
    return {count.__name__: count(texts) for count in of_texts} | {"public_members": public_members()} | upsert_calls()


def compared(counts: Mapping[str, int], ceilings: Mapping[str, int], steps: Mapping[str, int]) -> tuple[list[str], dict[str, int]]:
    """Return what is said of counts above their ceilings, and the ceilings that can be lowered."""
    if set(counts) != set(ceilings):
        return [f"counts and ceilings differ: {', '.join(sorted(set(counts) ^ set(ceilings)))}"], {}
    above = [f"{name} is {found}, its ceiling {ceilings[name]}" for name, found in counts.items() if found > ceilings[name]]
    rounded = {name: -(-found // steps.get(name, 1)) * steps.get(name, 1) for name, found in counts.items()}
    return above, {name: value for name, value in rounded.items() if value < ceilings[name]}


def main(words: list[str], file: Path = ROOT / "scripts/ceilings.toml", counts: Mapping[str, int] | None = None) -> int:
    """Compare, and lower the ceilings if wanted; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true", help="write the counts that fell into the file")
    given = parser.parse_args(words)
    text = file.read_text()
    table = tomllib.loads(text)
    above, lower = compared(counted(ROOT) if counts is None else counts, table["ceilings"], table["steps"])
    for name, value in lower.items():
        print(f"{name} fell: its ceiling can be {value} instead of {table['ceilings'][name]} (scripts/check_ceilings.py --lower)")
        text = re.sub(rf"(?m)^{name} = {table['ceilings'][name]}\b", f"{name} = {value}", text)
    if given.lower:
        file.write_text(text)
    for said in above:
        print(f"{said}. Make it less, or raise the ceiling in scripts/ceilings.toml and say why in the commit.", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
