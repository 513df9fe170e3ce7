"""The wheel with one extra, installed into a fresh virtual environment, runs the README's Python example as it stands."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from e2e.cluster.errors import ClusterError
from e2e.release import artifacts, trial
from e2e.release.artifacts import clean

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(command: list[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return artifacts.build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel with its extra `sql`, at the pinned versions."""
    return artifacts.install(wheel, tmp_path_factory.mktemp("wheel") / "venv", "sql")


def test_the_wheel_of_a_release_passes_its_trial(wheel: Path, python: Path, tmp_path: Path) -> None:
    trial.try_wheel(wheel, python, tmp_path)
    with pytest.raises(ClusterError, match=r"expected 'tideline 9.9.9"):
        trial.try_wheel(wheel.with_name("tideline_hudi-9.9.9-py3-none-any.whl"), python, tmp_path)


def test_the_readme_runs_on_the_wheel(python: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    printed = run([python, "example.py"], tmp_path, clean())
    assert re.search(r"2026-01-02 │ +1 │", printed)
    assert re.search(r"ROLLBACK.+COMPACTION.+CLUSTERING.+CLEAN.+ARCHIVAL.+findings=\(\)", printed, re.DOTALL)


def test_the_engine_needs_no_extra(python: Path, tmp_path: Path) -> None:
    """Everything but what the doors of an extra import: nothing is imported that the metadata does not name."""
    run([python, "-m", "pip", "check"], tmp_path, clean())
    code = "import pkgutil, tideline_table, tideline_locks, tideline_events, tideline, importlib\n"
    code += "for p in (tideline_table, tideline_locks, tideline_events, tideline):\n"
    code += "    for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.'):\n"
    code += "        if not any(extra in m.name for extra in ('.redis', '.kafka', 'zookeeper', 'metastore', 'dynamodb')):\n"
    code += "            importlib.import_module(m.name)\n"
    run([python, "-c", code], tmp_path, clean())


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import tideline; tideline.open('.', locks='redis://localhost:1/0')", "redis"),
        ("import tideline_locks.hudi_zookeeper_lock", "zookeeper"),
        ("import tideline_locks.hudi_metastore_lock", "catalogs"),
        ("import tideline_locks.hudi_dynamodb_lock", "aws"),
        ("import tideline_events; tideline_events.open_event_log('kafka://localhost:1')", "kafka"),
        ("import tideline_spark.read", "spark"),
        ("import tideline_spark.data_source", "spark"),
        ("import tideline_mirror.__main__", "services"),
        ("import sys, tideline_cli.main as m; sys.exit(m.run(['up', '--tables', '.']))", "services"),
    ],
)
def test_a_missing_extra_is_named(python: Path, tmp_path: Path, code: str, extra: str) -> None:
    create = "import pyarrow as pa, tideline; tideline.create('.', schema=pa.schema([('id', pa.string())]), key='id')"
    run([python, "-c", create], tmp_path, clean())
    done = subprocess.run([python, "-c", code], cwd=tmp_path, env=clean(), capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode
    assert f"expected the extra '{extra}' of Tideline; pip install 'tideline-hudi[{extra}]'" in done.stderr


def test_the_command_starts_without_an_extra(python: Path, tmp_path: Path) -> None:
    assert run([python.with_name("tideline"), "--version"], tmp_path, clean()) == f"tideline {PROJECT['version']}\n"
    assert "resize-buckets" in run([python.with_name("tideline"), "--help"], tmp_path, clean())


def test_the_distribution_names_what_it_imports() -> None:
    named = [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]
    known = {re.split(r"[<>=\[]", name)[0].replace("-", "_") for name in named}
    known |= {path.name for path in (*ROOT.glob("libs/*/src/*"), *ROOT.glob("services/*/src/*"))}
    trees = [ast.parse(source.read_text()) for folder in ("libs", "services") for source in (ROOT / folder).rglob("src/**/*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    # By pydantic, PySpark, install-jdk, pyyaml, boto3, authlib and protobuf.
    brought = {"pydantic_core", "py4j", "jdk", "yaml", "botocore", "joserfc", "google"}
    assert imported - known - brought - sys.stdlib_module_names == set()
