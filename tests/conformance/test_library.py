"""The library of stories: each is made once, ahead or when it is asked for, and nothing is made beside the tests that want to
be alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.matrix import Kind, Topic
from tests.conformance.peers.apache_hudi import PeerFailed
from tests.conformance.stories.catalogue import STORIES
from tests.conformance.stories.story import Maker, Step, Story
from tests.conformance.story_library import Library, _decides, kept_story

WAIT_S = 60.0
ROWS = pa.table({"id": ["a"]})


@dataclass
class Peer:
    """Stands in for Apache Hudi; `made` tells which steps were taken."""

    made: list[str] = field(default_factory=list)

    def read(self, *_: Any, **__: Any) -> pa.Table:
        return ROWS

    def story(self, name: str, *acts: Callable[[], object]) -> Story:
        """One step for each act."""

        def step(number: int, act: Callable[[], object]) -> Step:
            def do(maker: Maker) -> None:
                maker.base.mkdir(parents=True, exist_ok=True)
                self.made.append(f"{name} {number}")
                act()

            return Step(f"step {number}", Topic.INSERT, do)

        return Story(name, Kind.COW, tuple(step(number, act) for number, act in enumerate(acts)))


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def shelf(peer: Peer, tmp_path: Path) -> Iterator[Library]:
    with closing(Library(lambda: peer, tmp_path)) as made:  # type: ignore[arg-type,return-value]
        yield made


def kept_in(folder: Path) -> Callable[[Story], Path]:
    return lambda story: folder / story.name


def nothing() -> None:
    """What most steps do."""


def test_stories_are_made_once_whoever_asks(shelf: Library, peer: Peer) -> None:
    ahead, later = peer.story("ahead", nothing, nothing), peer.story("later", nothing)
    shelf.make_ahead([ahead])
    for _ in range(2):
        assert shelf.step(ahead, "step 1").snapshot == ROWS
        assert shelf.step(later, "step 0").snapshot == ROWS
    assert sorted(peer.made) == ["ahead 0", "ahead 1", "later 0"]


def test_nothing_is_made_ahead_beside_who_wants_to_be_alone(shelf: Library, peer: Peer) -> None:
    begun, left, ended = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        deadline_s = time.monotonic() + WAIT_S
        while shelf._may_go_on.is_set() and time.monotonic() < deadline_s:
            time.sleep(0.01)  # until a test wants to be alone
        left.set()

    story = peer.story("long", first, ended.set)
    shelf.make_ahead([story])
    assert begun.wait(WAIT_S)
    with shelf.resting():
        assert left.is_set(), "the step that ran has ended"
        assert not ended.wait(0.3)
    assert shelf.step(story, "step 1").snapshot == ROWS
    assert peer.made == ["long 0", "long 1"]


def test_what_the_peer_could_not_make_is_told_to_who_asks(shelf: Library, peer: Peer) -> None:
    def fails() -> None:
        raise PeerFailed("java.lang.Oops", "no")

    story = peer.story("broken", nothing, fails)
    shelf.make_ahead([story])
    assert shelf.step(story, "step 0").snapshot == ROWS
    with pytest.raises(AssertionError, match=r"could not make broken beyond the step 'step 1': java\.lang\.Oops: no"):
        shelf.step(story, "step 1")
    assert peer.made == ["broken 0", "broken 1"]


def test_an_error_of_this_side_is_met_by_who_asks(shelf: Library, peer: Peer) -> None:
    story = peer.story("wrong", lambda: 1 // 0)
    after = peer.story("after", nothing)
    shelf.make_ahead([story, after])
    assert shelf.step(after, "step 0").snapshot == ROWS
    with pytest.raises(ZeroDivisionError):
        shelf.step(story, "step 0")


def test_closing_leaves_the_rest_unmade(shelf: Library, peer: Peer) -> None:
    begun = threading.Event()

    def first() -> None:
        begun.set()
        assert shelf._is_closing.wait(WAIT_S)

    shelf.make_ahead([peer.story("one", first, nothing), peer.story("two", nothing)])
    assert begun.wait(WAIT_S)
    shelf.close()
    assert peer.made == ["one 0"]


def test_the_peer_rests_when_all_is_made_and_is_asked_again(peer: Peer, tmp_path: Path) -> None:
    rested = threading.Event()
    asked: list[bool] = []

    def hudi() -> Peer:
        asked.append(rested.is_set())
        return peer

    ahead, later = peer.story("ahead", nothing), peer.story("later", nothing)
    with closing(Library(hudi, tmp_path, rest=rested.set)) as made:  # type: ignore[arg-type,return-value]
        made.make_ahead([ahead])
        assert rested.wait(WAIT_S)
        assert peer.made == ["ahead 0"]
        assert made.step(later, "step 0").snapshot == ROWS
    assert asked == [False, True]


def test_whole_stories_are_kept_for_the_next_session(peer: Peer, tmp_path: Path) -> None:
    def fails() -> None:
        raise PeerFailed("java.lang.Oops", "no")

    story, broken = peer.story("kept", nothing, nothing), peer.story("broken", nothing, fails)
    for session in ("first", "second"):
        with closing(Library(lambda: peer, tmp_path / session, kept_in(tmp_path / "kept"))) as shelf:  # type: ignore[arg-type,return-value]
            shelf.make_ahead([story])
            found = shelf.step(story, "step 1")
            assert found.snapshot == ROWS
            assert found.base.is_relative_to(tmp_path / "kept" / "kept")
            assert shelf.step(broken, "step 0").snapshot == ROWS
    assert sorted(peer.made) == sorted(["broken 0", "broken 1"] * 2 + ["kept 0", "kept 1"])
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["kept"]


def test_a_story_that_another_session_kept_first_stays(peer: Peer, tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "story"

    def elsewhere() -> None:
        (kept / "00-step-0").mkdir(parents=True)
        (kept / "00-step-0" / "snapshot.arrow").write_bytes(b"of another session")

    story = peer.story("story", elsewhere)
    with closing(Library(lambda: peer, tmp_path / "made", kept_in(tmp_path / "kept"))) as shelf:  # type: ignore[arg-type,return-value]
        found = shelf.step(story, "step 0")
    assert (found.folder / "snapshot.arrow").read_bytes() == b"of another session"
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["story"]


def test_a_change_to_a_module_makes_only_those_stories_anew_that_it_can_reach():
    of_life, of_sql, of_merging = (
        {path.name for path in _decides(f"tests.conformance.stories.{name}")} for name in ("life", "statements", "merging")
    )
    assert of_life & of_sql >= {"story.py", "matrix.py", "hudi_server.py", "apache_hudi.py", "environment.py", "peer-hudi.txt"}
    assert not of_life & {"statements.py", "merging.py", "layouts.py", "catalogue.py"}
    assert "life.py" not in of_sql
    assert of_merging >= of_life | of_sql | {"merging.py"}
    assert len({kept_story(story).parent for story in STORIES}) == 5
    assert len({kept_story(story) for story in STORIES}) == len(STORIES)
