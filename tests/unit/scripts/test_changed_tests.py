"""Which tests a change can reach, in a small repository with the folders of this one."""

from __future__ import annotations

import subprocess

import pytest
from scripts.changed_tests import Repository, main

FILES = {
    "pyproject.toml": '[project.scripts]\nmill = "mill.command:main"\n',
    "README.md": "",
    "libs/mill/src/mill/__init__.py": "import lazy_loader\n",
    "libs/mill/src/mill/__init__.pyi": "from .stones import grind\nfrom .sieve import sift\n",
    "libs/mill/src/mill/stones.py": "from .water import wheel\n",
    "libs/mill/src/mill/water.py": "",
    "libs/mill/src/mill/sieve.py": 'MESH = "mesh.csv"\n',
    "libs/mill/src/mill/mesh.csv": "1\n",
    "libs/mill/src/mill/command.py": '"""Not a use of `mill.water`."""\nLOADED = "mill.sieve"\n',
    "libs/mill/src/mill/unused.py": "",
    "tests/conftest.py": "",
    "tests/fixtures/grain.json": "{}",
    "tests/unit/conftest.py": "from mill import water\n",
    "tests/unit/test_lazy.py": "from mill import grind\n",
    "tests/regression/test_sieve.py": "import mill.sieve\n",
    "tests/regression/test_stones.py": "from mill import grind\n",
    "tests/regression/test_grain.py": 'FOLDER = "fixtures"\n',
    "tests/regression/test_program.py": 'COMMAND = ["mill", "--version"]\n',
    "tests/spark/test_spark.py": "from tests.regression.test_sieve import mill\n",
    "tests/full_disk/test_links.py": 'PAGES = "**/*.md"\n',
}


@pytest.fixture
def place(tmp_path):
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("libs/mill/src/mill/water.py", {"lazy", "stones"}),
        ("libs/mill/src/mill/stones.py", {"lazy", "stones"}),
        ("libs/mill/src/mill/sieve.py", {"sieve", "spark", "program"}),
        ("libs/mill/src/mill/mesh.csv", {"sieve", "spark", "program"}),
        ("libs/mill/src/mill/command.py", {"program"}),
        ("tests/regression/test_sieve.py", {"sieve", "spark"}),
        ("tests/unit/conftest.py", {"lazy"}),
        ("tests/fixtures/grain.json", {"grain"}),
        ("README.md", {"links"}),
        ("libs/mill/src/mill/__init__.pyi", {"lazy", "sieve", "stones", "spark", "program"}),
    ],
)
def test_what_one_file_reaches(place, changed, reached):
    found = Repository(place).reached({changed})
    assert {path.rpartition("/test_")[2].removesuffix(".py") for path in found} == reached


@pytest.mark.parametrize(
    "changed", ["pyproject.toml", "tests/conftest.py", "libs/mill/src/mill/unused.py", "a/file/that/nobody/names"]
)
def test_what_nobody_names_reaches_every_test(place, changed):
    assert len(Repository(place).reached({changed})) == sum("/test_" in path for path in FILES)


def test_removed_and_new_files_count_and_suites_are_chosen(place, capsys):
    (place / "libs/mill/src/mill/water.py").unlink()
    (place / "tests/spark/test_new.py").write_text("")
    said = []
    assert main(["HEAD", "test"], place, said.append) == 0
    assert capsys.readouterr().out.split() == ["tests/regression/test_stones.py", "tests/unit/test_lazy.py"]
    assert said == [
        "spark: 1 test files are reached by 2 changed files and left out here",
        "test: 2 test files are reached by 2 changed files",
    ]
    main(["HEAD"], place, said.append)
    assert "tests/spark/test_new.py" in capsys.readouterr().out
