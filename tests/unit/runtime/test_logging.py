import io
import json
import logging
import re
import threading
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from tideline_runtime.logging import bound, configure_logging, get_logger, logs
from tideline_runtime.redaction import HIDDEN, redacted_text, redactor
from tideline_table.errors import StorageError


def fail(error):
    raise error


@pytest.fixture
def lines():
    stream = io.StringIO()
    with logs("probe", level="info", log_format="json", secrets=()):
        configure_logging("probe", secrets=["s3cr3t-value"], stream=stream)
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_an_object_with_the_fixed_fields(lines):
    with bound(table="file:/t"):
        get_logger("x").info("done", rows=3, instant="2026")
    (line,) = lines()
    assert list(line)[:4] == ["timestamp", "level", "event", "service"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("timestamp"))
    assert line == {
        "level": "info",
        "event": "done",
        "service": "probe",
        "rows": 3,
        "instant": "2026",
        "table": "file:/t",
        "logger": "x",
    }


def test_bound_fields_end_with_their_context(lines):
    with bound(table="a"):
        pass
    get_logger("x").info("done")
    assert "table" not in lines()[0]


def test_lines_of_libraries_take_the_same_way(lines):
    logging.getLogger("some.library").warning("lost %s of %d", "a", 3, extra={"table": "t"})
    (line,) = lines()
    assert (line["event"], line["level"], line["logger"], line["service"], line["table"]) == (
        "lost a of 3",
        "warning",
        "some.library",
        "probe",
        "t",
    )


def test_levels(lines):
    get_logger("x").debug("hidden")
    logging.getLogger("tornado.access").info("hidden")
    logging.getLogger("tornado.access").error("shown")
    assert [line["event"] for line in lines()] == ["shown"]


def test_errors_have_fields_and_a_traceback_in_one_line(lines):
    try:
        fail(StorageError("no answer", expected="one", remedy="wait"))
    except StorageError as error:
        get_logger("x").warning("failed", exc_info=error)
        logging.getLogger("y").exception("failed")
    for line in lines():
        assert (line["error"], line["recovery"], line["found"], line["expected"], line["remedy"]) == (
            "StorageError",
            "retry",
            "no answer",
            "one",
            "wait",
        )
        assert "Traceback" in line["exception"]


def test_secrets_are_hidden_wherever_they_are(lines):
    try:
        fail(ValueError("bad s3cr3t-value"))
    except ValueError:
        get_logger("x").exception(
            "using s3cr3t-value",
            url="redis://u:pass@h",
            nested={"password": "p", "list": ["s3cr3t-value"], "secret_key": 5},
            holder=SecretStr("other"),
            api_key="k",
        )
    (line,) = lines()
    text = json.dumps(line)
    assert "s3cr3t" not in text
    assert (line["url"], line["api_key"], line["nested"]["password"], line["nested"]["secret_key"]) == (
        f"redis://u:{HIDDEN}@h",
        HIDDEN,
        HIDDEN,
        HIDDEN,
    )
    assert "other" not in text


def test_tokens_that_are_no_secrets_stay_readable(lines):
    get_logger("x").info("done", fencing_token=7, write_token="1-0-1")
    assert (lines()[0]["fencing_token"], lines()[0]["write_token"]) == (7, "1-0-1")


def test_values_that_json_does_not_know(lines):
    get_logger("x").info("done", where=object, keys={("a", 1): {2}}, deep=[[[[[[[[[[[1]]]]]]]]]]])
    assert lines()[0]["keys"] == {"('a', 1)": [2]}


def test_warnings_and_thread_errors_are_lines(lines):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("careful", stacklevel=1)
    thread = threading.Thread(target=lambda: 1 / 0, name="stray")
    thread.start()
    thread.join()
    loggers = ["py.warnings", "tideline_runtime.logging"]
    said = [line for line in lines() if line["logger"] in loggers]  # threads of earlier tests may still end
    assert [line["logger"] for line in said] == loggers
    assert said[1]["error"] == "ZeroDivisionError"


def test_console_is_for_people():
    stream = io.StringIO()
    with logs("probe", level="info", log_format="json", secrets=()):
        configure_logging("probe", log_format="console", stream=stream, secrets=["s3cr3t-value"])
        try:
            fail(ValueError("s3cr3t-value"))
        except ValueError:
            get_logger("x").exception("it failed")
    assert "it failed" in stream.getvalue()
    assert "Traceback" in stream.getvalue()
    assert "s3cr3t" not in stream.getvalue()


def test_what_was_configured_before_comes_back():
    root, hook = logging.getLogger(), threading.excepthook
    handlers, level = root.handlers[:], root.level
    with logs("probe", level="debug", log_format="json", secrets=()):
        assert root.handlers != handlers
    assert (root.handlers, root.level, threading.excepthook) == (handlers, level, hook)


@given(
    st.text(alphabet="abc:/@. ", min_size=4, max_size=8),
    st.recursive(st.text(alphabet="abc:/@. ", max_size=30), st.lists, max_leaves=5),
)
def test_no_secret_survives(secret, value):
    assert secret not in "".join(map(str, [redactor((secret,))(value)]))


def test_url_passwords():
    assert redacted_text("a redis://u:p@ss@h:1/0 and kafka://:x@h") == f"a redis://u:{HIDDEN}@h:1/0 and kafka://:{HIDDEN}@h"
    assert redacted_text("file:/a@b s3://bucket/a:b@c") == "file:/a@b s3://bucket/a:b@c"
