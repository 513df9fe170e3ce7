"""The narrowest rule decides, field by field; the order of rules means nothing."""

import json
import random

from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.property.profile import few

from tideline_runtime.policy import ContradictoryRules, Policies, parse_policies
from tideline_runtime.policy.document import parse_document
from tideline_runtime.policy.errors import PolicyRefused

FOLDERS = ("a", "b", "ab")
PATHS = [f"s3://lake/{x}/{y}" for x in FOLDERS for y in FOLDERS]
PATTERNS = [
    "s3://lake/**",
    "s3://lake/*/*",
    "s3://lake/a*/*",
    *(f"s3://lake/{x}/*" for x in FOLDERS),
    *(f"s3://lake/{x}/**" for x in FOLDERS),
]
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 100),
        "services": st.fixed_dictionaries({}, optional={"clean": st.booleans(), "clustering": st.booleans()}),
        "retention": st.fixed_dictionaries({"commits": st.integers(1, 9)}),
        "budget": st.fixed_dictionaries({"bytes_per_day": st.one_of(st.none(), st.integers(0, 9))}),
    },
)
MATCHES = st.one_of(
    st.fixed_dictionaries({"paths": st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2)}),
    st.fixed_dictionaries(
        {
            "paths": st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2),
            "exclude": st.lists(st.sampled_from(PATHS), max_size=2),
        }
    ),
    st.fixed_dictionaries({"tables": st.lists(st.sampled_from(PATHS), min_size=1, max_size=2)}),
    st.just({"tags": ["gold"]}),
)
RULES = st.lists(st.builds(lambda body, match: {**body, "match": match}, BODIES, MATCHES), max_size=6)
TAGS = {"gold": {"paths": ["s3://lake/a/*"]}}


def made(defaults, rules) -> Policies:
    return parse_policies(json.dumps({"version": 1, "defaults": defaults, "tags": TAGS, "rules": rules}), "f")


def outcome(policies: Policies, path: str):
    try:
        return {name: own.value for name, own in policies.of(path).given.items()}
    except ContradictoryRules as error:
        return error.field


@few
@given(BODIES, RULES, st.sampled_from(PATHS), st.randoms(use_true_random=False))
def test_a_merge_is_independent_of_the_order_of_rules(defaults, rules, path, rng: random.Random):
    shuffled = list(rules)
    rng.shuffle(shuffled)
    assert outcome(made(defaults, rules), path) == outcome(made(defaults, shuffled), path)


@few
@given(BODIES, RULES, st.sampled_from(PATHS), BODIES)
def test_a_rule_for_a_table_wins_over_all_wider_ones_in_the_fields_that_it_gives_and_in_no_others(defaults, rules, path, own):
    wider = [rule for rule in rules if "tables" not in rule["match"]]
    before = outcome(made(defaults, wider), path)
    assume(isinstance(before, dict))
    narrow = made(defaults, [*wider, {**own, "match": {"tables": [path]}}])
    alone = {name: given.value for name, given in made({}, [{**own, "match": {"tables": [path]}}]).of(path).given.items()}
    assert outcome(narrow, path) == dict(sorted({**before, **alone}.items()))
    other = next(p for p in PATHS if p != path)
    assert outcome(narrow, other) == outcome(made(defaults, wider), other)


@few
@given(BODIES, RULES, st.sampled_from(PATHS))
def test_every_value_is_one_that_its_origin_gives(defaults, rules, path):
    policies = made(defaults, rules)
    assume(isinstance(outcome(policies, path), dict))
    matching = {rule.label: rule.fields for rule in policies.rules_for(path)} | {"defaults": policies.defaults}
    same_label = len({rule.label for rule in policies.rules}) < len(policies.rules)
    for name, own in policies.of(path).given.items():
        assert own.origin.rule in matching
        assert same_label or matching[own.origin.rule][name] == own


@few
@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`,?\n \t0129", max_size=60))
@example("a: &x [*x]")
@example("- - - - - - - - - - - - - - - - - - - - - - - - -")
@example("? [a]\n: b")
@example("!!python/object:os.system {}")
def test_any_text_is_parsed_or_refused_with_a_line(text):
    refusal = None
    try:
        json.dumps(parse_document(text, "f").values)
    except PolicyRefused as error:
        refusal = error
    assert refusal is None or all(1 <= problem.line <= text.count("\n") + 2 for problem in refusal.problems)
