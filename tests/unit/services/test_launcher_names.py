import re

from hypothesis import given
from hypothesis import strategies as st

from tideline_launcher.names import MAX_LENGTH, application_name, digest_in, is_shared_name, place_digest, shared_name

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
PATHS = st.from_regex(r"s3://bucket[a-z0-9]{0,8}(/[A-Za-z0-9_=. -]{1,12}){0,4}", fullmatch=True).filter(
    lambda path: not {"", ".", ".."} & set(path.split("://")[1].split("/"))
)
INSTANTS = st.from_regex(r"[0-9]{17}", fullmatch=True)


def test_a_name_tells_table_instant_and_attempt():
    name = application_name("My_Trips.v2", "s3://lake/trips", "20260101000000000", 2)
    assert name == f"my-trips-v2-{place_digest('s3://lake/trips')}-20260101000000000-2"


@given(table=st.text(max_size=300), path=PATHS, instant=INSTANTS, attempt=st.integers(1, 99_999))
def test_names_are_dns_labels_with_room_for_executors(table, path, instant, attempt):
    name = application_name(table, path, instant, attempt)
    assert DNS_LABEL.fullmatch(name)
    assert len(name) <= MAX_LENGTH
    assert len(f"{name}-exec-{2**31 - 1}") <= 63
    assert name.endswith(f"-{instant}-{attempt}")
    assert digest_in(name) == place_digest(path)


@given(
    st.lists(
        st.tuples(st.sampled_from(["trips", "Trips", "tr ips", "x" * 80, ""]), PATHS, INSTANTS, st.integers(1, 50)), unique=True
    )
)
def test_names_are_equal_for_equal_attempts_only(attempts):
    """Tables of one place have one name: it is part of the definition that the place holds."""
    by_name = {}
    for table, path, instant, attempt in attempts:
        by_name.setdefault(application_name(table, path, instant, attempt), set()).add((path, instant, attempt))
    assert all(len(meant) == 1 for meant in by_name.values())


ATTEMPTS = st.builds(application_name, st.text(max_size=60), PATHS, INSTANTS, st.integers(1, 99))


@given(st.lists(ATTEMPTS, min_size=2, max_size=8, unique=True), st.randoms())
def test_the_name_of_a_shared_application_follows_from_its_attempts_in_any_order(attempts, random):
    name = shared_name(attempts)
    assert DNS_LABEL.fullmatch(name)
    assert len(name) <= MAX_LENGTH
    assert is_shared_name(name)
    assert digest_in(name) is None, "no attempt has such a name"
    assert not any(is_shared_name(attempt) for attempt in attempts)
    assert shared_name(random.sample(attempts, len(attempts))) == name
    assert shared_name(attempts[1:]) != name


def test_a_further_attempt_of_one_plan_gives_the_group_another_name():
    def named(attempt):
        return shared_name(application_name("t", "/t", i, n) for i, n in (("1", attempt), ("2", 1)))

    assert named(1) == named(1) != named(2)


def test_spellings_of_a_place_have_one_name():
    assert place_digest("/data/trips") == place_digest("file:/data/trips") == place_digest("file:///data/trips")
    assert place_digest("s3a://lake/trips") == place_digest("s3://lake/trips/")


def test_other_texts_are_no_names():
    digest = place_digest("/data/trips")
    for text in ("", "trips", f"trips-{digest}-20260101000000000", f"../trips-{digest}-20260101000000000-1", f"T-{digest}-1-1"):
        assert digest_in(text) is None
    assert digest_in(f"trips-{digest}-20260101000000000-1") == digest
