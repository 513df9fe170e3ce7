"""`tideline policy` on real tables, and the example of docs/policies.md."""

import json
import re
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest
import yaml
from tests.plans import schedule_clustering, schedule_log_compaction
from tests.unit.services.conftest import fleet
from tests.unit.services.fleet import update, write

from tideline_cli.policy_program import main
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.planning import Thresholds
from tideline_runtime.planning.replay import replay
from tideline_runtime.policy import Policies, is_open, parse_policies
from tideline_runtime.policy.model import policy_schema_text
from tideline_table.action import TableService, create_savepoint, restore_to_savepoint, run_clustering, run_log_compaction
from tideline_table.table import TableType

__all__ = ["fleet"]
DOCS = Path(__file__).resolve().parents[3] / "docs"
EXAMPLE = re.search(r"```yaml\n(.*?)```", (DOCS / "policies.md").read_text(), re.DOTALL).group(1)


def policy_file(folder, text):
    path = folder / "policies.yaml"
    path.write_text(f"version: 1\n{text}")
    return str(path)


def run(capsys, *arguments):
    code = main(arguments)
    return code, capsys.readouterr()


def test_the_example_of_the_page_holds_and_fits_the_schema_that_editors_use():
    policies = parse_policies(EXAMPLE, "example")
    raw, tried, orders, returns = (
        policies.of(f"s3://lake/{name}") for name in ("raw/clicks", "raw/test_a", "sales/orders", "sales/eu/returns")
    )
    assert (raw.is_on(TableService.CLUSTERING), tried.is_on(TableService.CLUSTERING)) == (False, True)
    assert raw.settings("launcher") == {"max_attempts": 5}
    assert (orders.bytes_per_day, returns.bytes_per_day) == (None, 200 << 30)
    assert (orders.priority, returns.objectives.unmerged_log_age_s, returns.objectives.small_files) == (80, 7200, 500)
    assert orders.pause.until.isoformat() == "2026-12-01T05:00:00+00:00"
    assert not is_open(returns.windows, orders.pause.until.replace(hour=12))
    assert policies.of("s3://lake/sales/tmp/x").priority == 50
    schema = json.loads((DOCS / "policy.schema.json").read_text())
    assert schema == json.loads(policy_schema_text())
    document = yaml.safe_load(EXAMPLE)
    jsonschema.Draft202012Validator(schema).validate(document)
    for damage in ({"fleet": {"bytes_per_day": "2 TB"}}, {"rules": [{"priority": 1}]}, {"defaults": {"windows": [{"from": "1"}]}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**document, **damage}, schema)


def test_explain_names_the_rule_and_the_line_behind_each_value(fleet, tmp_path, capsys):
    table = fleet.create()
    text = f"defaults: {{priority: 60}}\nrules:\n  - match: {{tables: [{table.uid}]}}\n    retention: {{commits: 7}}\n"
    file = policy_file(tmp_path, text)
    code, printed = run(capsys, "explain", table.base_path, "--file", file, "--json")
    document = json.loads(printed.out)
    values = {one["field"]: (one["value"], one["rule"], one["line"]) for one in document["values"]}
    assert (code, document["uid"]) == (0, table.uid)
    assert values["priority"] == (60, "defaults", 2)
    assert values["options.hoodie.cleaner.commits.retained"] == ("7", f"rule 1 (tables {table.uid})", 5)
    assert values["services.clean"] == (True, "built-in default", None)
    code, printed = run(capsys, "explain", str(tmp_path / "nothing"), "--file", file)
    assert (code, "no table is there" in printed.out) == (0, True)
    (tmp_path / "hudis" / ".hoodie").mkdir(parents=True)
    (tmp_path / "hudis" / ".hoodie" / "hoodie.properties").touch()
    code, printed = run(capsys, "explain", str(tmp_path / "hudis"), "--file", file)
    assert (code, "only Apache Hudi writes the table" in printed.out) == (0, True)


def test_check_names_every_line_that_is_wrong(tmp_path, capsys):
    file = policy_file(tmp_path, "defaults:\n  priority: 200\n  options: {hoodie.x: 1}\n  x: 1\n")
    code, printed = run(capsys, "check", file)
    assert (code, [int(n) for n in re.findall(r"line (\d+)", printed.out)]) == (2, [3, 5])
    file = policy_file(tmp_path, "defaults:\n  options: {hoodie.x: 1}\n")
    assert main(("check", file, "--json")) == 2
    assert json.loads(capsys.readouterr().out)["problems"][0]["line"] == 3


def test_check_holds_a_file_against_the_real_tables(fleet, tmp_path, capsys):
    for name in ("a", "b"):
        write(fleet.create(name), 0)
    rules = [
        f'{{match: {{tables: ["{fleet.path("a")}"]}}, sort_columns: [fare, colour]}}',
        '{name: forgotten, match: {paths: ["/nowhere/*"]}, priority: 3}',
    ]
    file = policy_file(tmp_path, "rules:\n" + "".join(f"  - {rule}\n" for rule in rules))
    code, printed = run(capsys, "check", file, "--tables", fleet.path("*"))
    assert (code, "names 'colour'" in printed.out, "line 4, forgotten: no table matches" in printed.err) == (2, True, True)
    file = policy_file(tmp_path, "rules: []\n")
    code, printed = run(capsys, "check", file, "--tables", fleet.path("*"))
    assert (code, "checked against 2 tables" in printed.out) == (0, True)


def replayed(capsys, fleet, file):
    code, printed = run(capsys, "test", file, "--since", "2020-01-01", "--json", "--tables", fleet.path("*"))
    assert code == 0, printed.err
    return json.loads(printed.out)


def test_a_replay_shows_what_a_policy_would_have_done_with_the_recorded_writes(fleet, tmp_path, capsys):
    plain, logged = fleet.create("plain"), fleet.create("logged", type=TableType.MOR)
    for n in range(6):
        write(plain, 10 * n)
        write(logged, 0) if n == 0 else update(logged, 0)
        logged.refresh()
        fleet.clock.advance(3600)
    schedule_clustering(plain)
    run_clustering(plain)
    before = plain.refresh().sequence
    small = "settings: {planner: {clustering_min_files: 3, clustering_min_commits: 2}}"
    off = replayed(capsys, fleet, policy_file(tmp_path, "defaults: {services: {clustering: false, compaction: false}}\n"))
    by_path = {one["base_path"].rsplit("/", 1)[-1]: one for one in off["tables"]}
    assert (off["jobs"], off["bytes_rewritten"]) == (0, 0)
    assert (by_path["plain"]["most_small_files"], by_path["plain"]["recorded_jobs"]) == (6, 1)
    assert by_path["logged"]["largest_log_age_s"] > 3 * 3600
    on = replayed(capsys, fleet, policy_file(tmp_path, f"defaults: {{{small}, objectives: {{unmerged_log_age: 2h}}}}\n"))
    by_path = {one["base_path"].rsplit("/", 1)[-1]: one for one in on["tables"]}
    assert by_path["plain"]["clusterings"] >= 2
    assert by_path["plain"]["most_small_files"] < 6
    assert by_path["logged"]["compactions"] >= 2
    assert by_path["logged"]["largest_log_age_s"] < 2.5 * 3600
    assert on["bytes_rewritten"] > 0
    none = replayed(capsys, fleet, policy_file(tmp_path, f"fleet: {{bytes_per_day: 1}}\ndefaults: {{{small}}}\n"))
    assert none["jobs"] == 0
    assert plain.refresh().sequence == before, "a replay writes nothing"


MERGING = {"hoodie.log.compaction.enable": "true", "hoodie.log.compaction.blocks.threshold": "3"}


def services(clustering, compaction, **options):
    switches = f"services: {{clustering: {clustering}, compaction: {compaction}}}"
    return f"defaults: {{{switches}, options: {{{', '.join(f'{key}: {value}' for key, value in options.items())}}}}}\n"


def test_a_replay_makes_log_compactions_where_the_planner_would(fleet, tmp_path, capsys):
    logged = fleet.create("logged", type=TableType.MOR)
    for n in range(9):
        write(logged, 0) if n == 0 else update(logged, 0)
        logged.refresh()
        fleet.clock.advance(3600)
    assert schedule_log_compaction(logged, MERGING) is not None
    assert run_log_compaction(logged) is not None
    before = logged.refresh().sequence

    def tried(text):
        (one,) = replayed(capsys, fleet, policy_file(tmp_path, text))["tables"]
        assert one["jobs"] == one["clusterings"] + one["compactions"] + one["log_compactions"]
        return one

    # Eight updates: the third one, and each second one after it, is the third file that a reader opens.
    alone = tried(services("false", "false", **MERGING))
    assert (alone["compactions"], alone["log_compactions"], alone["recorded_jobs"]) == (0, 3, 1)
    assert alone["bytes_rewritten"] > 0
    assert alone["largest_log_age_s"] > 6 * 3600, "rows stay in log files"
    # A compaction after five writes, with the merged file among its input, begins again with no log files.
    both = tried(services("false", "true", **MERGING))
    assert (both["compactions"], both["log_compactions"]) == (1, 2)
    # A compaction that is due merges the same log files.
    often = tried(services("false", "true", **MERGING, **{"hoodie.compact.inline.max.delta.commits": "2"}))
    assert (often["compactions"], often["log_compactions"]) == (4, 0)
    off = tried(services("false", "false"))
    assert (off["jobs"], off["bytes_rewritten"], off["recorded_jobs"]) == (0, 0, 1)
    assert logged.refresh().sequence == before, "a replay writes nothing"


def names(base_paths):
    return [path.rsplit("/", 1)[-1] for path in base_paths]


def test_a_replay_leaves_out_a_table_that_its_rule_does_not_fit(fleet, tmp_path, capsys):
    fits, wrong = fleet.create("fits"), fleet.create("wrong")
    for n in range(4):
        write(fits, 10 * n)
        write(wrong, 10 * n)
        fleet.clock.advance(3600)
    small = "defaults: {settings: {planner: {clustering_min_files: 3, clustering_min_commits: 2}}}"
    rule = f'{{match: {{tables: ["{wrong.base_path}"]}}, sort_columns: [colour]}}'
    file = policy_file(tmp_path, f"{small}\nrules:\n  - {rule}\n")
    command = ("test", file, "--since", "2020-01-01", "--tables", fleet.path("*"))
    code, printed = run(capsys, *command, "--json")
    document = json.loads(printed.out)
    assert (code, names(one["base_path"] for one in document["tables"])) == (2, ["fits"])
    assert document["jobs"] >= 1
    assert names(document["left_out"]) == ["wrong"]
    assert "sort column 'colour' is not in the schema" in next(iter(document["left_out"].values()))
    code, printed = run(capsys, *command)
    assert (code, f"{wrong.base_path} is left out: sort column 'colour'" in printed.err) == (2, True)


def test_a_replay_without_a_table_that_it_cannot_replay_succeeds(fleet, tmp_path, capsys):
    fits, restored = fleet.create("fits"), fleet.create("restored")
    write(fits, 0)
    first = write(restored, 0).instant
    create_savepoint(restored, first)
    write(restored, 10)
    restore_to_savepoint(restored, first)
    found = replayed(capsys, fleet, policy_file(tmp_path, "rules: []\n"))
    assert (names(one["base_path"] for one in found["tables"]), names(found["left_out"])) == (["fits"], ["restored"])


def test_a_replay_leaves_out_a_table_whose_settings_are_not_valid(fleet):
    fits, wrong = fleet.create("fits"), fleet.create("wrong")
    write(fits, 0)
    write(wrong, 0)

    def thresholds_of(own):
        if own.base_path == wrong.base_path:
            raise InvalidSetting("planner.x is 1", name="planner.x", origin="a rule")
        return Thresholds()

    since, until = fleet.clock.now() - timedelta(days=1), fleet.clock.now()
    outcome = replay(Policies(), {}, thresholds_of, [fits.base_path, wrong.base_path], since, until)
    assert ([one.base_path for one in outcome.tables], outcome.is_valid) == ([fits.base_path], False)
    assert outcome.left_out == {wrong.base_path: "planner.x is 1"}
