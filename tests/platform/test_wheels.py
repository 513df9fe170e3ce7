"""The wheels of `tideline` and of what it needs, installed into a fresh virtual environment, run the README's Python example as it stands."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = ("libs/table", "libs/locks", "libs/tideline")


def run(command: list[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheels and, at the pinned versions, what their metadata names."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "dist"]
    run([*build, *(ROOT / member for member in MEMBERS)], folder)
    pins = re.findall(r"^[A-Za-z0-9_.-]+==[^\\\n]+", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(pins))
    venv.create(folder / "venv", with_pip=True)
    found = folder / "venv/bin/python"
    # By their files: a public registry has another project of the name `tideline`.
    wheels = sorted((folder / "dist").glob("*.whl"))
    run([found, "-m", "pip", "install", "--quiet", "--constraint", folder / "pins.txt", *wheels], folder, clean())
    return found


def clean() -> dict[str, str]:
    """The environment without the sources of this repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_readme_runs_on_the_wheels(python: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    printed = run([python, "example.py"], tmp_path, clean())
    assert "[[250],[120]]" in re.sub(r"\s", "", printed)
    assert re.search(r"2026-01-02 │ +1 │", printed)
    assert re.search(r"Clustering\(instant='', reason='.+Compaction\(.+Clean\(", printed)


def test_the_metadata_of_the_wheels_is_complete(python: Path, tmp_path: Path) -> None:
    """Nothing is imported that no wheel names, and nothing named is missing."""
    run([python, "-m", "pip", "check"], tmp_path, clean())
    code = "import pkgutil, tideline_table, tideline_locks, tideline, importlib\n"
    code += "for p in (tideline_table, tideline_locks, tideline):\n"
    code += "    for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.'):\n        importlib.import_module(m.name)\n"
    code += "import importlib.metadata as md; print(md.metadata('tideline')['Summary'], md.version('tideline'))"
    assert "0.1.0" in run([python, "-c", code], tmp_path, clean())


@pytest.mark.parametrize("member", sorted(p.parent for p in ROOT.glob("*/*/pyproject.toml")), ids=lambda path: path.name)
def test_members_name_what_they_import(member: Path) -> None:
    project = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *itertools.chain(*project.get("optional-dependencies", {}).values())]
    known = {re.split(r"[<>=]", name)[0].replace("-", "_") for name in named} | {path.name for path in (member / "src").iterdir()}
    trees = [ast.parse(source.read_text()) for source in (member / "src").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    brought = {"pydantic_core", "py4j", "jdk", "yaml"}  # by pydantic, PySpark, install-jdk and pyyaml
    assert imported - known - brought - sys.stdlib_module_names == set()
