"""Prints the test files that a change can reach, by imports: `python scripts/changed_tests.py BASE [SUITE ...]`.

What a module reaches is read from its text: imports (by name, through the stubs of packages that import lazily), and texts that
name a module, a command, a file or a folder of this repository. A test is also reached by the `conftest.py` files above it. A
file that no text names, such as the configuration of pytest, reaches every test. The full suites decide; this script gives a
first answer.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
EVERYTHING = ("pyproject.toml", "Makefile", "requirements/", "tests/conftest.py")
"""What each test may depend on without naming it."""
SUITES = {
    "spark": ("tests/spark/",),
    "faults": tuple(
        f"tests/{name}/" for name in ("simulation", "weakenings", "property", "fuzz", "full_disk", "endurance", "platform")
    ),
    "conformance": ("tests/conformance/",),
    "test": ("tests/",),
}
"""The folders of each suite; a test belongs to the first that has it."""


def git(root: Path, *words: str) -> list[str]:
    """Return the lines that a command of git prints."""
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()


def changed_files(root: Path, base: str) -> set[str]:
    """Return the paths of all that differs from where this branch left `base`, committed or not."""
    return {
        *git(root, "diff", "--name-only", "--no-renames", "--merge-base", base),
        *git(root, "ls-files", "--others", "--exclude-standard"),
    }


def module_of(path: str) -> str:
    """Return the name by which a file is imported: members of the distribution have a folder `src`."""
    name = path.rpartition("/src/")[2].rpartition(".")[0].removesuffix("/__init__")
    return name.replace("/", ".")


class Repository:
    """The files of a repository, and which of them each one needs at first hand."""

    def __init__(self, root: Path, gone: Iterable[str] = ()) -> None:
        self.root = root
        self.files = sorted({*git(root, "ls-files", "--cached", "--others", "--exclude-standard"), *gone})
        self.sources = [path for path in self.files if path.endswith((".py", ".pyi"))]
        self._trees: dict[str, ast.Module] = {}
        self._prose: set[int] = set()

    def tree(self, path: str) -> ast.Module:
        """Return the text of a file, parsed; nothing of a file that is gone."""
        if path not in self._trees:
            self._trees[path] = ast.parse((self.root / path).read_bytes()) if (self.root / path).is_file() else ast.Module([], [])
        return self._trees[path]

    @cached_property
    def modules(self) -> dict[str, str]:
        """The file of each module; of a package with a stub, the stub is read too."""
        return {module_of(path): path for path in self.sources if path.endswith(".py")}

    @cached_property
    def commands(self) -> dict[str, str]:
        """The module of each command that the distribution installs."""
        file = self.root / "pyproject.toml"
        scripts = tomllib.loads(file.read_text()).get("project", {}).get("scripts", {}) if file.is_file() else {}
        return {name: place.partition(":")[0] for name, place in scripts.items()}

    @cached_property
    def stubs(self) -> dict[str, dict[str, str]]:
        """For each package that imports lazily, the module that defines each of its names."""
        found: dict[str, dict[str, str]] = {}
        for path in self.sources:
            if path.endswith("__init__.pyi"):
                package = module_of(path)
                imports = [node for node in self.tree(path).body if isinstance(node, ast.ImportFrom)]
                found[package] = {a.asname or a.name: absolute(package, node, a.name)[0] for node in imports for a in node.names}
        return found

    def places(self, name: str) -> Iterator[str]:
        """Yield the files that importing the module `name` runs: its own, and those of the packages around it."""
        words = name.split(".")
        for count in range(1, len(words) + 1):
            if path := self.modules.get(".".join(words[:count])):
                yield path

    def imported(self, path: str) -> Iterator[str]:
        """Yield the files of the modules that a file imports, anywhere in it."""
        package = module_of(path) if path.endswith("__init__.py") else module_of(path).rpartition(".")[0]
        for node in ast.walk(self.tree(path)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self.places(alias.name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    module, whole = absolute(package, node, alias.name)
                    defined = self.stubs.get(module, {}).get(alias.name)
                    for name in (module, defined) if defined else (whole if whole in self.modules else module,):
                        yield from self.places(name)

    @cached_property
    def names(self) -> dict[str, set[str]]:
        """The files that a text may mean: by path, by each end of a path, by folder, by module or by command."""
        found: dict[str, set[str]] = defaultdict(set)
        for path in self.files:
            parts = PurePosixPath(path).parts
            for start in range(len(parts)):
                found["/".join(parts[start:])].add(path)
            if not path.endswith((".py", ".pyi")):
                for start in range(len(parts) - 1):
                    for end in range(start + 1, len(parts)):
                        found["/".join(parts[start:end])].add(path)
                found[PurePosixPath(path).stem].add(path)
                found[f"*{PurePosixPath(path).suffix}"].add(path)
        for name, path in self.modules.items():
            found[name].add(path)
            if "." in name:
                found[f"{name.rpartition('.')[0]}."].add(path)
        for command, module in self.commands.items():
            found[command].update(self.places(module))
        return found

    def named(self, path: str) -> Iterator[str]:
        """Yield the files that texts of a file mean. Programs name modules and data files, tests also commands and folders."""
        is_test = not path.startswith(("libs/", "services/"))
        for node in ast.walk(self.tree(path)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                self._prose.add(id(node.value))
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and len(node.value) < 200
                and id(node) not in self._prose
            ):
                text = node.value.strip("/")
                if is_test:
                    words = {text, text.partition(":")[0], text.rpartition("**/")[2]}
                else:
                    words = {text} if "." in text else set()
                    yield from self.places(text)
                for word in words:
                    yield from self.names.get(word, ())

    def around(self, path: str) -> Iterator[str]:
        """Yield the files of fixtures in the folders around a test."""
        for folder in PurePosixPath(path).parents:
            if (conftest := (folder / "conftest.py").as_posix()) != path and conftest in self.modules.values():
                yield conftest

    def needs(self, path: str) -> set[str]:
        """Return the files that one file needs at first hand."""
        if not path.endswith(".py"):
            return set()
        found = {*self.imported(path), *self.named(path)}
        return found | set(self.around(path)) if PurePosixPath(path).name.startswith("test_") else found

    def reached(self, changed: set[str]) -> list[str]:
        """Return the test files that need one of the changed files, at first hand or through others."""
        tests = [path for path in self.sources if path.startswith("tests/") and PurePosixPath(path).name.startswith("test_")]
        users: dict[str, set[str]] = defaultdict(set)
        for path in self.sources:
            for needed in self.needs(path):
                users[needed].add(path)
        stubs = {path: path.removesuffix("i") for path in changed if path.endswith(".pyi")}
        if any(
            path.startswith(EVERYTHING) or not (users[stubs.get(path, path)] or path in tests)
            for path in changed
            if not is_prose(path)
        ):
            return tests
        found: set[str] = set()
        todo = [stubs.get(path, path) for path in changed]
        while todo:
            if (path := todo.pop()) not in found:
                found.add(path)
                todo += users[path]
        return [path for path in tests if path in found and (self.root / path).is_file()]


def is_prose(path: str) -> bool:
    """Whether a file is a page for people: no test reads it, unless the test names it."""
    return path.endswith(".md")


def absolute(package: str, node: ast.ImportFrom, name: str) -> tuple[str, str]:
    """Return the module of `from MODULE import NAME` in a package, and MODULE.NAME."""
    words = package.split(".")
    module = (
        ".".join([*words[: len(words) - node.level + 1], *([node.module] if node.module else [])])
        if node.level
        else node.module or ""
    )
    return module, f"{module}.{name}"


def suite_of(path: str) -> str:
    """Return the suite that runs a test file."""
    return next(suite for suite, folders in SUITES.items() if path.startswith(folders))


def main(words: list[str], root: Path = ROOT, say: Callable[[str], object] = lambda text: print(text, file=sys.stderr)) -> int:
    """Print the files of the wanted suites, one a line, and say how many the other suites have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="a commit or branch")
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], default=[])
    given = parser.parse_args(words)
    changed = changed_files(root, given.base)
    by_suite: dict[str, list[str]] = defaultdict(list)
    for path in Repository(root, changed).reached(changed):
        by_suite[suite_of(path)].append(path)
    for suite, paths in sorted(by_suite.items()):
        wanted = not given.suites or suite in given.suites
        say(f"{suite}: {len(paths)} test files are reached by {len(changed)} changed files{'' if wanted else ' and left out here'}")
        if wanted:
            print(*paths, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
