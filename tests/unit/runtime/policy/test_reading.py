"""A policy file is read with every value checked; what is wrong is named with its line."""

import textwrap
from datetime import UTC, datetime

import pytest

from tideline_runtime.policy import ContradictoryRules, Pause, Policies, PolicyRefused, parse_policies
from tideline_table.action import TableService

UID = "0d9f2f2a-7a43-4b42-8f5e-6f3f2c1b0a99"
LAKE = "s3://lake"
KEPT = "options.hoodie.cleaner.commits.retained"


def read(text: str) -> Policies:
    return parse_policies(textwrap.dedent(text), "fleet.yaml")


WHOLE = f"""\
# yaml-language-server: $schema=policy.schema.json
version: 1
fleet: {{bytes_per_day: 2 TiB, pending_plans: 20}}
defaults:
  retention: {{commits: 10}}
  windows:
    - {{from: "22:00", to: "05:00", time_zone: Europe/Berlin, days: [mon, tue, wed, thu, fri]}}
  settings: {{planner: {{clustering_min_files: 6}}, launcher: {{resources: {{executor_cores: 4}}}}}}
tags:
  gold: {{paths: ["{LAKE}/sales/**"], exclude: ["{LAKE}/sales/tmp/*"], tables: [{UID}]}}
rules:
  - name: raw
    match: {{paths: ["{LAKE}/raw/*"], exclude: ["{LAKE}/raw/old_*"]}}
    services: {{clustering: false}}
    retention: {{commits: 3, log: 14d}}
  - match: {{paths: ["{LAKE}/raw/click?"]}}
    services: {{clustering: true}}
    sort_columns: [user, at]
    freshness: 5m
  - match: {{tags: [gold]}}
    priority: 90
    windows: []
    budget: {{bytes_per_day: 200 GiB}}
    objectives: {{small_files: 100, log_to_base_ratio: 0.5, unmerged_log_age: 6h}}
  - match: {{tables: ["{LAKE}/sales/orders"]}}
    options: {{hoodie.clustering.plan.strategy.max.num.groups: 7, hoodie.archive.automatic: false}}
    pause: {{reason: "migration", until: 2026-12-24T18:00:00+01:00}}
"""


def test_every_field_of_a_file_reaches_the_tables_that_it_is_for():
    policies = read(WHOLE)
    assert (policies.fleet.bytes_per_day, policies.fleet.pending_plans) == (2 << 40, 20)
    assert (policies.fleet.share(3).bytes_per_day, policies.fleet.share(40).pending_plans) == ((2 << 40) // 3, 1)
    other, raw, clicks = (policies.of(f"{LAKE}/{name}") for name in ("other/a", "raw/views", "raw/clicks"))
    assert (other.options, raw.options["hoodie.cleaner.commits.retained"]) == ({"hoodie.cleaner.commits.retained": "10"}, "3")
    assert other.settings("planner") == {"clustering_min_files": 6}
    assert other.settings("launcher") == {"resources": {"executor_cores": 4}}
    assert [p.is_on(TableService.CLUSTERING) for p in (other, raw, clicks)] == [True, False, True]
    assert clicks.options["hoodie.clustering.plan.strategy.sort.columns"] == "user,at"
    assert (clicks.settings("mirror"), other.settings("mirror")) == ({"freshness_s": 300.0}, {})
    assert clicks.options["tideline.log.retention"] == str(14 * 86400.0)
    assert policies.of(f"{LAKE}/raw/old_views").is_on(TableService.CLUSTERING), "the rule excludes it"
    orders = policies.of(f"{LAKE}/sales/orders")
    assert (orders.priority, orders.windows, orders.bytes_per_day) == (90, (), 200 << 30)
    assert (orders.objectives.small_files, orders.objectives.log_to_base_ratio) == (100, 0.5)
    assert orders.objectives.unmerged_log_age_s == 6 * 3600
    assert orders.options["hoodie.archive.automatic"] == "false"
    assert orders.pause == Pause("migration", datetime(2026, 12, 24, 17, tzinfo=UTC))
    for name, given in orders.given.items():
        assert given.origin.line > 3, name
    assert str(raw.given[KEPT].origin) == "raw (line 15)"
    assert str(other.given[KEPT].origin) == "defaults (line 5)"
    assert policies.of(f"{LAKE}/elsewhere", UID).priority == 90, "a tag may name a uid"
    assert policies.tags_of(f"{LAKE}/sales/tmp/x") == ()


def test_a_pause_ends_by_itself_and_never_stops_the_rollback_of_dead_writers():
    orders = read(WHOLE).of(f"{LAKE}/sales/orders")
    before, after = datetime(2026, 12, 24, 16, 59, tzinfo=UTC), datetime(2026, 12, 24, 17, tzinfo=UTC)
    stopped = [s for s in TableService if not orders.wants(s, before)]
    assert set(TableService) - set(stopped) == {TableService.ROLLBACK}
    assert all(orders.wants(s, after) for s in TableService)


def test_a_resource_is_narrower_than_every_rule():
    own = read(WHOLE).of(
        f"{LAKE}/raw/views",
        resource_options={"hoodie.cleaner.commits.retained": "40"},
        resource_settings={"planner": {"clustering_min_files": 9}},
    )
    assert own.options["hoodie.cleaner.commits.retained"] == "40"
    assert own.settings("planner") == {"clustering_min_files": 9}
    assert str(own.given[KEPT].origin) == "HudiTable resource"


def test_rules_of_equal_rank_that_differ_are_named_for_the_table_that_both_match():
    text = """\
    version: 1
    tags: {a: {paths: ["s3://lake/x/*"]}, b: {paths: ["s3://lake/*/t"]}}
    rules:
      - {match: {tags: [a]}, priority: 10, services: {clean: false}}
      - {match: {tags: [b]}, priority: 20, services: {clean: false}}
    """
    policies = read(text)
    assert [policies.of(path).priority for path in ("s3://lake/x/a", "s3://lake/y/t")] == [10, 20]
    with pytest.raises(ContradictoryRules, match=r"priority has different values in rule 1 .*line 4.* and rule 2 .*line 5"):
        policies.of("s3://lake/x/t")


def test_log_compaction_is_switched_on_and_bounded_by_names_of_the_policy():
    on, files, most = (
        f"{key}"
        for key in ("hoodie.log.compaction.enable", "hoodie.log.compaction.blocks.threshold", "tideline.log.compaction.max.bytes")
    )
    policies = read(
        f"""\
        version: 1
        defaults: {{services: {{logcompaction: true}}, logcompaction: {{files: 10}}}}
        rules:
          - {{match: {{paths: ["{LAKE}/raw/*"]}}, services: {{logcompaction: false}}, logcompaction: {{max_bytes: 1 MiB}}}}
          - {{match: {{paths: ["{LAKE}/old/*"]}}, services: {{logcompaction: true}}, options: {{{on}: false}}}}
        """
    )
    other, raw, old = (policies.of(f"{LAKE}/{name}/a") for name in ("other", "raw", "old"))
    assert other.options == {on: "true", files: "10"}
    assert str(other.given[f"options.{on}"].origin) == "defaults (line 2)"
    assert raw.options == {on: "true", files: "10", most: str(1 << 20)}
    assert [policy.is_on(TableService.LOG_COMPACTION) for policy in (other, raw, old)] == [True, False, True]
    assert old.options[on] == "false", "a rule that gives the option says what it is"
    silent = read("version: 1\ndefaults: {services: {clustering: true}}\n").of(f"{LAKE}/a/b")
    assert (silent.options, silent.is_on(TableService.LOG_COMPACTION)) == ({}, True), "the option decides"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "an empty file"),
        ("version: 2\n", 1, "version is 2"),
        ("rules: []\n", 1, "version is missing"),
        ("version: 1\nrules: [\n", 3, "no YAML"),
        ("version: 1\nversion: 1\n", 2, "given again (first on line 1)"),
        ("version: 1\ndefaults: &a {priority: 1}\n", 2, "an anchor or alias"),
        ("version: 1\ndefaults:\n  priorty: 1\n", 3, "defaults.priorty is no field of a policy"),
        ("version: 1\ndefaults:\n  priority: high\n", 3, "defaults.priority is 'high'"),
        ("version: 1\ndefaults:\n  priority: 101\n", 3, "less than or equal to 100"),
        ("version: 1\ndefaults:\n  services:\n    clean: off\n", 4, "defaults.services.clean is 'off'"),
        ("version: 1\ndefaults:\n  options:\n    hoodie.cleaner.comits.retained: 3\n", 4, "'hoodie.cleaner.commits.retained'"),
        ("version: 1\ndefaults:\n  options:\n    hoodie.cleaner.commits.retained: 0\n", 4, "of at least 1"),
        ("version: 1\ndefaults:\n  options:\n    tideline.lock.ttl: 3\n", 4, "holds for a whole fleet"),
        (
            "version: 1\ndefaults:\n  retention: {commits: 3}\n  options: {hoodie.cleaner.commits.retained: 4}\n",
            3,
            "one of the two",
        ),
        ("version: 1\ndefaults:\n  settings:\n    planner: {clustering_min_file: 4}\n", 4, "did you mean clustering_min_files?"),
        ("version: 1\ndefaults:\n  freshness: 300\n", 3, "a duration with its unit: 90s, 30m, 6h or 2d"),
        ("version: 1\ndefaults:\n  freshness: 10s\n  settings: {mirror: {freshness_s: 5}}\n", 4, "which the rule gives, too"),
        ("version: 1\ndefaults:\n  settings:\n    plannr: {}\n", 4, "plannr has no settings per table"),
        (
            "version: 1\ndefaults:\n  logcompaction: {files: 3}\n  options: {hoodie.log.compaction.blocks.threshold: 4}\n",
            3,
            "one of the two",
        ),
        ("version: 1\ndefaults:\n  logcompaction: {files: 1}\n", 3, "greater than or equal to 2"),
        ("version: 1\ndefaults:\n  logcompaction: {blocks: 2}\n", 3, "is no field of a policy"),
        ("version: 1\ndefaults:\n  budget: {bytes_per_day: 2 GB}\n", 3, "200 GiB"),
        ("version: 1\ndefaults:\n  budget: {bytes_per_day: -1}\n", 3, "greater than or equal to 0"),
        ("version: 1\ndefaults:\n  objectives: {unmerged_log_age: 6}\n", 3, "a duration with its unit"),
        ("version: 1\ndefaults:\n  windows:\n    - {from: '22:00', to: '24:00', time_zone: UTC}\n", 4, "a time of day"),
        ("version: 1\ndefaults:\n  windows:\n    - {from: '22:00', to: '23:00', time_zone: Mars}\n", 4, "a time zone"),
        ("version: 1\ndefaults:\n  windows:\n    - {from: '22:00', to: '23:00'}\n", 4, "time_zone is missing"),
        ("version: 1\ndefaults:\n  pause: {reason: x, until: 2026-12-24}\n", 3, "a time with its zone"),
        ("version: 1\nrules:\n  - match: {}\n", 3, "exactly one of paths, tags and tables"),
        ("version: 1\nrules:\n  - match: {paths: [a/b], tags: [c]}\n", 3, "exactly one of paths, tags and tables"),
        ("version: 1\nrules:\n  - match: {tags: [gold]}\n", 3, "a tag declared in tags"),
        ("version: 1\nrules:\n  - match: {tables: [orders]}\n", 3, "names of tables are not unique"),
        ("version: 1\nrules:\n  - match:\n      tables:\n        - s3://lake/*\n", 5, "without * and ?"),
        ("version: 1\nrules:\n  - match:\n      paths:\n        - s3://lake/**/x\n", 5, "** as the last part"),
        ("version: 1\nrules:\n  - match:\n      paths: ['!s3://lake/x']\n", 4, "no pattern can exclude"),
        ("version: 1\nrules:\n  - match:\n      paths: [gs://lake/x]\n", 4, "s3://bucket/path"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, line, said):
    with pytest.raises(PolicyRefused) as refused:
        parse_policies(text, "fleet.yaml")
    first = refused.value.problems[0]
    assert first.line == line, str(first)
    assert said in str(first), str(first)
    assert str(refused.value).startswith(f"policy file fleet.yaml, line {line}: ")


def test_all_problems_are_collected_in_order_of_line():
    text = "version: 1\ndefaults:\n  priority: 200\n  services: {clean: 1}\nrules: [{match: {paths: []}}]\n"
    with pytest.raises(PolicyRefused) as refused:
        parse_policies(text, "f")
    assert [problem.line for problem in refused.value.problems] == [3, 4, 5]
    assert "and 2 more: tideline policy check f" in str(refused.value)


def test_a_null_lifts_what_a_wider_rule_gives():
    text = """\
    version: 1
    defaults: {pause: {reason: everything stands still}, budget: {bytes_per_day: 0}}
    rules:
      - {match: {paths: ["s3://lake/*"]}, pause: null, budget: {bytes_per_day: null}}
    """
    here, elsewhere = (read(text).of(path) for path in ("s3://lake/a", "s3://other/a"))
    assert (here.pause, here.bytes_per_day) == (None, None)
    assert (elsewhere.pause, elsewhere.bytes_per_day) == (Pause("everything stands still"), 0)


@pytest.mark.parametrize("piece", ["[", "- ", "[a, ", "{a: ", "[[], "])
def test_deep_nesting_is_refused_where_it_begins(piece):
    """A parser that reads on takes minutes for these texts."""
    with pytest.raises(PolicyRefused, match="nested too deep; expected at most 20 levels"):
        parse_policies(piece * 100_000, "f")
