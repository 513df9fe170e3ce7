"""The peers of the conformance suite, a Spark process for the whole session, and the matrix that it prints at its end.

Another process makes the tables of all stories that the cache does not hold, while the first one serves the tests that come before
those that read them. Tests that need an older release of Apache Hudi, or a Spark session of this side, are the first, kind by kind:
the process of a kind ends behind the last of its tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from zlib import crc32

import pytest
from pyspark.sql import SparkSession
from tests.conformance.matrix import Cell, Direction, Kind, Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.environment import prepare
from tests.conformance.service_strategies import Proof, Strategy, impossible, reasons
from tests.conformance.stories.story import Story
from tests.conformance.story_library import Library, kept_story
from tests.simulation.faults import SAMPLE_STEP

from tideline_spark.session import local_session, stop_session

IMPOSSIBLE = [Cell(Topic.COMPACTION, Kind.COW, direction) for direction in Direction]
NO_REASONS: dict[Cell, str] = {}
STORY_TIMEOUT_S = 1200
OLDER_RELEASE = "0.15.0"
DEAR = ("older_hudi", "spark")
"""Fixtures with a process of Spark that lives only as long as the next test asks for it."""
FOURTH = 4
"""Cases marked `every_fourth` run in turn: the first, the fifth, and so on."""
CHEAP_CHILDREN = ("-Djol.skipHotspotSAAttach=true", "-Djdk.lang.Process.launchMechanism=VFORK")
"""Hadoop starts a `chmod` for each file that Hudi writes: without a second program in between. And Hudi's estimates of sizes do not
need two more JVMs that look at its first one."""
CHEAP_JVMS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""JVMs that live for seconds, as holders of locks and Spark's launcher, compile little and collect garbage in one thread."""
os.environ["JDK_JAVA_OPTIONS"] = " ".join((*filter(None, [os.environ.get("JDK_JAVA_OPTIONS")]), *CHEAP_CHILDREN, *CHEAP_JVMS))
_MATRIX = pytest.StashKey[Matrix]()
_SERVICES = pytest.StashKey[Matrix]()
_STORIES = pytest.StashKey[list[Story]]()
"""What the chosen tests ask the library for."""
_ENDS = pytest.StashKey[dict[str, Callable[[], None]]]()
"""By fixture of DEAR, what ends the process that it has begun."""
_OLDER = pytest.StashKey[ApacheHudi]()
_SPARK = pytest.StashKey[SparkSession]()


@pytest.fixture(scope="session")
def hudi_session() -> Iterator[list[ApacheHudi]]:
    """Holds the real Apache Hudi once a test asked for it."""
    held: list[ApacheHudi] = []
    yield held
    for peer in held:
        peer.close()


@pytest.fixture(scope="session")
def apache_hudi(hudi_session: list[ApacheHudi]) -> ApacheHudi:
    """The real Apache Hudi; see `peers/environment.py` for what it needs."""
    return _peer(hudi_session)


def _peer(session: list[ApacheHudi]) -> ApacheHudi:
    if not session:
        session.append(ApacheHudi())
    return session[0]


@pytest.fixture
def older_hudi(pytestconfig: pytest.Config) -> ApacheHudi:
    """Apache Hudi OLDER_RELEASE."""
    stash = pytestconfig.stash
    if "older_hudi" not in stash[_ENDS]:
        stash[_OLDER] = ApacheHudi(prepare(OLDER_RELEASE))
        stash[_ENDS]["older_hudi"] = stash[_OLDER].close
    return stash[_OLDER]


@pytest.fixture
def spark(pytestconfig: pytest.Config) -> SparkSession:
    """A session of this side's Spark."""
    stash = pytestconfig.stash
    if "spark" not in stash[_ENDS]:
        session = local_session("conformance", 2, extra={"spark.sql.shuffle.partitions": "2"}, short_lived=True)
        stash[_SPARK] = session
        stash[_ENDS]["spark"] = lambda: stop_session(session)
    return stash[_SPARK]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends what no test needs any more: tests of one fixture of DEAR follow each other."""
    wanted = getattr(nextitem, "fixturenames", ())
    ends = item.config.stash[_ENDS]
    for name in [name for name in ends if name not in wanted]:
        ends.pop(name)()


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """Tables made by Apache Hudi: from the cache, or in a Spark process of their own, while other tests run or when they are
    asked for."""
    named = pytestconfig.getoption("--keep-stories")
    folder_of = (lambda story: Path(named).resolve() / story.name) if named else kept_story
    held: list[ApacheHudi] = []

    def rest() -> None:
        while held:
            held.pop().close()

    made = Library(lambda: _peer(held), tmp_path_factory.mktemp("stories"), folder_of, rest)
    made.make_ahead(pytestconfig.stash[_STORIES])
    yield made
    made.close()
    rest()


@pytest.fixture(scope="session", autouse=True)
def _stories_ahead(request: pytest.FixtureRequest) -> None:
    """Begins with the tables that are asked for later."""
    if request.config.stash[_STORIES]:
        request.getfixturevalue("library")


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """For tests that race or kill: beside them no tables are made for others."""
    with ExitStack() as stack:
        if request.config.stash[_STORIES]:
            stack.enter_context(request.getfixturevalue("library").resting())
        yield


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config) -> Matrix:
    """Where tests say which cells they fill."""
    return pytestconfig.stash[_MATRIX]


@pytest.fixture(scope="session")
def service_matrix(pytestconfig: pytest.Config) -> Matrix:
    """The matrix of service strategies (`service_strategies.py`)."""
    return pytestconfig.stash[_SERVICES]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A folder of the test's own for tables."""
    return tmp_path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-stories", default="", metavar="FOLDER", help="keep tables made by Apache Hudi there instead of in the cache folder"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "whole_suite: judges the whole conformance suite; runs last, and only when nothing was left out"
    )
    config.addinivalue_line(
        "markers",
        "of_peers: what peers do, which their releases change; those with a process of Apache Hudi only with SAMPLE_STEP=1",
    )
    config.addinivalue_line(
        "markers", "pairs: each pair of parameters once, or one value of a single one, but with SAMPLE_STEP=1 all combinations"
    )
    config.addinivalue_line(
        "markers",
        "ends_hudi(number): ends the process of Apache Hudi; runs behind all for which it has compiled its code, in this order",
    )
    config.addinivalue_line("markers", f"every_fourth: one of {FOURTH} cases, but with SAMPLE_STEP=1 all")
    config.stash[_MATRIX] = Matrix(NO_REASONS, IMPOSSIBLE)
    config.stash[_SERVICES] = Matrix(reasons(), list(impossible()), rows=Strategy, columns=Proof, names_tests=True)
    config.stash[_STORIES] = []
    config.stash[_ENDS] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what needs the Spark process, so that `-m "not spark"` leaves it alone.

    What judges the matrix comes last, if at all.
    """
    is_sampled = SAMPLE_STEP > 1 and not any("::" in argument for argument in config.args)  # who names a test gets it
    if is_sampled and (beyond := [*_beyond_pairs(items), *_beyond_fourths(items), *filter(_is_of_peers, items)]):
        config.hook.pytest_deselected(items=beyond)
        items[:] = [item for item in items if item not in beyond]
    for item in items:
        if {"apache_hudi", "library", *DEAR} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)
        if "library" in getattr(item, "fixturenames", ()):
            # The test that asks first waits until the whole table is made.
            item.add_marker(pytest.mark.timeout(STORY_TIMEOUT_S))
    last = [item for item in items if item.get_closest_marker("whole_suite")]
    # A test that needs a story later finds it made, beside the others.
    readers = [item for item in items if "library" in getattr(item, "fixturenames", ())]
    others = [item for item in items if item not in last and item not in readers]
    others.sort(key=lambda item: (_ends_hudi(item), *(name not in getattr(item, "fixturenames", ()) for name in DEAR)))
    if last and not _is_whole(config):
        config.hook.pytest_deselected(items=last)
        last = []
    items[:] = others + readers + last
    callspecs = [item.callspec for item in readers if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    asked = [spec.params["story"] for spec in callspecs if isinstance(spec.params.get("story"), Story)]
    config.stash[_STORIES] = list({story.name: story for story in asked}.values())


def _ends_hudi(item: pytest.Item) -> int:
    marker = item.get_closest_marker("ends_hudi")
    return 0 if marker is None else int(marker.args[0])


def _is_of_peers(item: pytest.Item) -> bool:
    has_hudi = {"apache_hudi", "hudi_on_s3a"} & set(getattr(item, "fixturenames", ()))
    return item.get_closest_marker("of_peers") is not None and bool(has_hudi)


def _beyond_pairs(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of tests marked `pairs`, the half that is not needed to meet each value of two-valued parameters with each of another.

    Of a test with one such parameter, half of the tests meet one value, half the other.
    """
    beyond = []
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairs"):
            number = max(item.callspec.indices.values())  # of the combination, in the order of all of them
            if (number.bit_count() + crc32(item.originalname.encode())) % 2:
                beyond.append(item)
    return beyond


def _beyond_fourths(items: list[pytest.Item]) -> list[pytest.Item]:
    marked = [item for item in items if item.get_closest_marker("every_fourth")]
    return [item for number, item in enumerate(marked) if number % FOURTH]


def _is_whole(config: pytest.Config) -> bool:
    option = config.option
    chosen = option.keyword or option.markexpr or option.deselect or option.lf
    folder = Path(__file__).parent
    named = {(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args}
    return not chosen and any(folder.is_relative_to(path) for path in named)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the matrix above pytest's own last line."""
    stash = terminalreporter.config.stash
    for title, matrix in (("conformance", stash[_MATRIX]), ("conformance of service strategies", stash[_SERVICES])):
        if matrix.results:
            terminalreporter.section(title)
            for line in matrix.lines():
                terminalreporter.write_line(line)
