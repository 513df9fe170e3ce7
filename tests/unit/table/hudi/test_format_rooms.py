"""No code outside the room of a table version compares versions, or makes or parses names of timeline files and log files."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tideline_table.errors import InvalidOption
from tideline_table.hudi.formats import CREATED, UPGRADED, WRITTEN, format_of, format_to_create
from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.hudi.merge_rules import MERGE_RULES

ROOT = Path(__file__).parents[4]
ROOM = "libs/table/src/tideline_table/hudi/"
_ROOMS = re.compile(r"tideline_table\.hudi\.version\d+(\..*)?")
_COMPARED = re.compile(r"\b(definition|format|form|WRITTEN|UPGRADED|identity)\.(version|layout)\b")
_NAMES = re.compile(
    r"\.log\.[\d_]*$|\.(requested|inflight)$|\.commits_|^\.hoodie/(timeline|archived)?/?$|(^|})\.(delta|replace)?commit$"
)

EXCEPTIONS = {
    # Below `hudi`; asks only whether a data file is a log file.
    "libs/table/src/tideline_table/log_format/key_index.py": 1,
    # The marker of a hash ring, not a file of the timeline.
    "libs/table/src/tideline_table/index/hash_ring.py": 1,
    # Whether a path is one of a data file.
    "libs/table/src/tideline_table/action/clean/plan.py": 1,
    "libs/cli/src/tideline_cli/opening.py": 1,
}
"""File → places that break the rule today. They may only become fewer."""


def _broken(tree: ast.Module) -> list[str]:
    documented = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if _ROOMS.fullmatch(module):
                found.append(f"imports {module}")
            case ast.Compare() if _COMPARED.search(ast.unparse(node)):
                found.append(f"compares {ast.unparse(node)}")
            case ast.Attribute(value=ast.Name(id="p"), attr="VERSION" | "LAYOUT"):
                found.append(f"reads p.{node.attr}")
            case ast.Constant(value=str(text)) if id(node) not in documented and _NAMES.search(text):
                found.append(f"names {text!r}")
    return found


@pytest.fixture(scope="module")
def sources():
    paths = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.glob("*/*/src/**/*.py"))}
    return {name: ast.parse(path.read_text()) for name, path in paths.items() if not name.startswith(ROOM)}


def test_only_the_rooms_know_versions_and_names(sources):
    found = {name: broken for name, tree in sources.items() if (broken := _broken(tree))}
    assert {name: len(broken) for name, broken in found.items()} == EXCEPTIONS, found


@pytest.mark.parametrize(
    "code",
    [
        "from tideline_table.hudi.version6 import Version6",
        "definition.version >= 8",
        "properties.get(p.VERSION)",
        "f'{instant}.{action}.requested'",
        "f'.{file_id}_{base}.log.{version}'",
        "f'.hoodie/{name}'",
        "path + '.inflight'",
    ],
)
def test_the_rule_finds(code):
    assert _broken(ast.parse(code))


@pytest.mark.parametrize("form", [WRITTEN, UPGRADED], ids=["6", "8"])
@pytest.mark.parametrize("action", sorted(set(Action) - {Action.ARCHIVAL}))
@pytest.mark.parametrize("state", [State.REQUESTED, State.INFLIGHT, State.COMPLETED])
def test_names_of_timeline_files_return(form, action, state):
    instant = Instant("20260101000000001", action, state)
    completion = "20260101000000002" if state is State.COMPLETED and form.has_completion_times else ""
    name = form.timeline_file_name(instant, completion)
    found, completed = form.parse_timeline_file_name(name)
    assert (found.time, found.state, completed) == (instant.time, state, completion)
    assert form.timeline_file_name(found, completed) == name


def test_a_pending_clustering_has_names_of_its_own():
    """Layout 2 only. Where nobody knows whether a replace commit is one, both names are deleted."""
    begun = Instant("20260101000000001", Action.REPLACE_COMMIT, State.INFLIGHT, is_clustering=True)
    unknown = replace(begun, is_clustering=False)
    name = UPGRADED.timeline_file_name(begun)
    assert name == "20260101000000001.clustering.inflight"
    assert UPGRADED.parse_timeline_file_name(name)[0].is_clustering
    assert UPGRADED.possible_paths(unknown) == tuple(map(UPGRADED.timeline_path, (unknown, begun)))
    assert WRITTEN.possible_paths(begun) == (WRITTEN.timeline_path(unknown),)


@pytest.mark.parametrize("version", CREATED)
@pytest.mark.parametrize("ordering", ["", "ts"])
@pytest.mark.parametrize("rule", MERGE_RULES, ids=lambda rule: rule.name)
def test_a_format_is_found_by_the_properties_that_it_gives_to_a_new_table(version, rule, ordering):
    form = format_to_create(version)
    assert form.version == version
    assert format_of({**form.version_properties(), **form.merge_properties(rule, ordering)}) == form


def test_no_table_of_another_version_is_created():
    with pytest.raises(InvalidOption, match="table version 7; expected 6, 8 or 9"):
        format_to_create(7)
    assert format_to_create(0) is WRITTEN
