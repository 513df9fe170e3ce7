"""What viewers share: at most as old as it says, and nobody waits for a rendering who can have the one before."""

from __future__ import annotations

import gzip
import threading

import pytest

from tideline_console.shared import LATE_S, SHARED_S, WAITED_S, SharedAnswers


def got(answers: SharedAnswers, render, page: str = "page") -> bytes:
    """The answer, after a wait if there is one."""
    found = answers.of(page, render)
    return gzip.decompress(found if isinstance(found, bytes) else found.result(60))


def test_an_answer_is_rendered_again_beside_those_who_look():
    now_s, began, may_end = [0.0], threading.Event(), threading.Event()
    answers = SharedAnswers(lambda: now_s[0])

    def asked(body: bytes) -> bytes:
        return got(answers, lambda: body)

    def slow() -> bytes:
        began.set()
        assert may_end.wait(60)
        return b"second"

    assert asked(b"first") == b"first"
    now_s[0] = SHARED_S - 0.01
    assert asked(b"not rendered") == b"first"
    now_s[0] = SHARED_S
    assert got(answers, slow) == b"first"
    assert began.wait(60)
    may_end.set()
    now_s[0] = WAITED_S - 0.01
    while (found := asked(b"not rendered")) == b"first":
        pass
    assert found == b"second"
    now_s[0] = SHARED_S + WAITED_S
    assert asked(b"fourth") == b"fourth", "who looks alone waits"


def test_what_cannot_be_rendered_is_told_to_who_waits():
    now_s = [0.0]
    answers = SharedAnswers(lambda: now_s[0])

    def fails() -> bytes:
        raise ZeroDivisionError

    got(answers, lambda: b"first")
    now_s[0] = WAITED_S
    with pytest.raises(ZeroDivisionError):
        got(answers, fails)
    assert got(answers, lambda: b"second") == b"second"


def test_where_rendering_does_not_keep_up_one_waits_and_not_all():
    now_s, may_end = [0.0], threading.Event()
    answers = SharedAnswers(lambda: now_s[0])
    got(answers, lambda: b"first")

    def slow() -> bytes:
        assert may_end.wait(60)
        return b"second"

    now_s[0] = WAITED_S
    waits = answers.of("page", slow)
    assert not isinstance(waits, bytes)
    now_s[0] = LATE_S - 0.01
    assert got(answers, slow) == b"first"
    now_s[0] = LATE_S
    too_late = answers.of("page", lambda: b"third")
    assert too_late is waits, "an answer is never older than that"
    may_end.set()
    assert gzip.decompress(waits.result(60)) == b"second"


def test_an_answer_waits_once_to_be_rendered_again():
    now_s, may_end, rendered = [0.0], threading.Event(), []
    answers = SharedAnswers(lambda: now_s[0])
    pages = ("one", "two", "page")
    for page in pages:
        got(answers, lambda: b"first", page)

    def slow() -> bytes:
        assert may_end.wait(60)
        now_s[0] += SHARED_S  # so that each rendering that is asked for takes place
        rendered.append(None)
        return b"second"

    now_s[0] = SHARED_S
    for page in pages * 5:
        answers.of(page, slow)
    may_end.set()
    answers._pool.shutdown()
    assert len(rendered) == len(pages)
