"""The file of subscriptions, signatures, and what a subscription asks for."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from tests.contract.events.samples import new_uid, transition

from tideline_webhooks.messages import Messages
from tideline_webhooks.signing import signature_headers
from tideline_webhooks.subscriptions import Subscription, SubscriptionsRefused, read_subscriptions

FILE = """version: 1
subscriptions:
  - name: reports
    url: https://hooks.example/hooks/very-secret?key=hidden
    paths: [/lake/sales/**]
    filter: {to_state: completed, datachange: true, action: [commit, deltacommit]}
    secret_env: REPORTS
"""


def read(tmp_path: Path, text: str, **environment: str) -> tuple[Subscription, ...]:
    file = tmp_path / "subscriptions.yaml"
    file.write_text(text)
    return read_subscriptions(file, environment)


def test_a_file_is_read_and_shows_no_secret(tmp_path: Path):
    (one,) = read(tmp_path, FILE, REPORTS="whsec_c2VjcmV0")
    assert (one.name, one.kinds, one.format, one.on_failure, one.start) == (
        "reports",
        ("transition",),
        "cloudevents",
        "dead_letter",
        "now",
    )
    assert one.endpoint == "https://hooks.example"
    assert "very-secret" not in repr(one)
    assert "c2VjcmV0" not in repr(one)
    assert set(one.hidden) == {"whsec_c2VjcmV0", "key=hidden", "hooks/very-secret"}


@pytest.mark.parametrize(
    ("old", "new", "line", "found"),
    [
        ("name: reports", "name: a b", 3, "subscriptions[0].name is 'a b'"),
        ("url: https", "url: ftp", 4, "subscriptions[0].url is 'ftp://hooks.example"),
        ("https://hooks.example", "https://user:pass@hooks.example", 4, "subscriptions[0].url"),
        ("paths: [/lake/sales/**]", "paths: [sales]", 5, "subscriptions[0].paths[0] is 'sales'"),
        ("paths: [/lake/sales/**]", "exclude: [/lake/a]", 3, "subscriptions[0] names no table"),
        ("paths:", "path:", 5, "subscriptions[0].path is no field of a subscription"),
        ("to_state", "tostate", 6, "subscriptions[0].filter.tostate is no field of each of its events"),
        ("secret_env: REPORTS", "secret_env: OTHER", 7, "subscriptions[0].secret_env holds no secret"),
        ("secret_env: REPORTS", "secret_file: /no/such/file", 7, "subscriptions[0].secret_file holds no secret"),
        ("secret_env: REPORTS", "events: [job]\n    format: hudi", 7, "subscriptions[0].events is ['job']"),
        ("version: 1", "version: 2", 1, "version is 2"),
    ],
)
def test_each_problem_has_its_line(tmp_path: Path, old: str, new: str, line: int, found: str):
    with pytest.raises(SubscriptionsRefused) as refused:
        read(tmp_path, FILE.replace(old, new), REPORTS="a-secret")
    problems = {(problem.line, f"{problem.place} {problem.found}") for problem in refused.value.problems}
    assert any(at == line and text.startswith(found) for at, text in problems), problems
    assert str(refused.value).startswith("subscriptions file ")


def test_two_subscriptions_have_two_names_and_a_secret_behind_whsec_is_base64(tmp_path: Path):
    twice = FILE + FILE.partition("subscriptions:\n")[2]
    with pytest.raises(SubscriptionsRefused, match="is 'reports' again"):
        read(tmp_path, twice, REPORTS="a-secret")
    with pytest.raises(SubscriptionsRefused, match="expected a secret with base64 behind whsec_"):
        read(tmp_path, FILE, REPORTS="whsec_!")


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"action": "commit"}, True),
        ({"action": "deltacommit", "operation": None}, True),
        ({"action": "clean"}, False),
        ({"action": "commit", "datachange": False}, False),
        ({"action": "commit", "to_state": "inflight"}, False),
    ],
)
def test_fields_choose_events(tmp_path: Path, fields: dict[str, object], wanted: bool):
    (one,) = read(tmp_path, FILE, REPORTS="a-secret")
    assert one.wants(transition(new_uid(), 3, **{"to_state": "completed", "datachange": True, **fields})) is wanted


def test_a_signature_is_the_one_that_openssl_makes():
    key, body = b"thirty-two bytes of a secret key", b'{"id": 1}'
    secret = "whsec_" + base64.b64encode(key).decode()
    headers = signature_headers(secret, "an-id", 1_700_000_000, body)
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key.hex()}", "-binary"]
    signed = subprocess.run(command, input=b"an-id.1700000000." + body, capture_output=True, check=True).stdout
    assert headers == {
        "webhook-id": "an-id",
        "webhook-timestamp": "1700000000",
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def test_a_message_has_the_same_id_and_bytes_each_time(tmp_path: Path):
    (one,) = read(tmp_path, FILE, REPORTS="a-secret")
    event = transition(new_uid(), 3)
    first, second = (Messages(one, None).of(event) for _ in range(2))
    assert first == second
