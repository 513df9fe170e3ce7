"""Endpoints that answer in bad faith or badly: each is tried again or refused, in bounded time, and none is believed."""

from __future__ import annotations

import base64
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest
from tests.contract.events.samples import new_uid, transition
from tests.unit.webhooks.receiver import Answer, Receiver

from tideline_events.transitions import TableLogs
from tideline_runtime.policy.selector import Group
from tideline_webhooks.messages import Message, Messages
from tideline_webhooks.sending import Attempt, Outcome, Sender
from tideline_webhooks.subscriptions import Subscription

MESSAGE = Message("an-id", "application/json", b"{}")
KEY = b"a key of the endpoint"


def sent(url: str, message: Message = MESSAGE, **more: object) -> Attempt:
    sender = Sender(Subscription("s", url, Group(), **{"timeout_s": 0.5, **more}), 2)
    try:
        return sender.send(message, 1_700_000_000)
    finally:
        sender.close()


def acting(act: Callable[[BaseHTTPRequestHandler], None], status: int = 500, context: ssl.SSLContext | None = None) -> Receiver:
    return Receiver(lambda _: Answer(status, act=act), context)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    """How a server on loopback proves itself, and the file with the certificate by which its clients trust it."""
    key, certificate = (tmp_path_factory.mktemp("tls") / name for name in ("key.pem", "certificate.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    place = ["-subj", "/CN=receiver", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *place, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, str(certificate)


def huge(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\n")
    try:
        for _ in range(1000):
            handler.wfile.write(b"x" * 1_000_000)
            written.append(1_000_000)
    except OSError:
        ended.set()


def dripping(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    try:
        while True:
            handler.wfile.write(b"x")
            ended.wait(0.05)
    except OSError:
        ended.set()


def endless(text: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Never silent for long, and never at the end of the head of an answer."""

    def act(handler: BaseHTTPRequestHandler) -> None:
        try:
            while not ended.wait(0.05):
                handler.wfile.write(text)
        except OSError:
            ended.set()

    return act


written: list[int] = []
ended = threading.Event()


@pytest.mark.parametrize("act", [huge, dripping])
def test_the_body_of_an_answer_is_not_awaited(act):
    written.clear()
    ended.clear()
    receiver = acting(act, 200)
    try:
        begun_s = time.monotonic()
        assert sent(receiver.url) == Attempt(Outcome.TAKEN)
        assert time.monotonic() - begun_s < 20
        assert ended.wait(30)
        assert sum(written) < 100_000_000
    finally:
        receiver.close()


@pytest.mark.parametrize(
    "answer",
    [b"\x00\xff garbage \r\n\r\n", b"", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n"],
)
def test_what_is_no_answer_is_tried_again(answer: bytes):
    receiver = acting(lambda handler: handler.wfile.write(answer) and None)
    try:
        attempt = sent(receiver.url)
    finally:
        receiver.close()
    assert attempt.outcome is Outcome.RETRIED
    assert "/hook" not in attempt.reason


def test_an_endpoint_that_does_not_answer_or_is_not_there_is_tried_again():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/hook"
        assert sent(url) == Attempt(Outcome.RETRIED, "no answer (ReadTimeoutError)")
    assert sent(url).outcome is Outcome.RETRIED


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("text", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["status", "interim"])
def test_the_head_of_an_answer_that_never_ends_is_not_awaited(text: bytes, is_tls: bool, certified: tuple[ssl.SSLContext, str]):
    """Each of its bytes began the wait anew: a worker hung for hours, and the service did not end."""
    ended.clear()
    receiver = acting(endless(text), context=certified[0] if is_tls else None)
    try:
        assert sent(receiver.url, ca_file=certified[1]).outcome is Outcome.RETRIED
        assert ended.wait(30)
    finally:
        ended.set()
        receiver.close()


def test_an_endpoint_proves_itself_by_a_certificate_that_is_trusted(certified: tuple[ssl.SSLContext, str]):
    receiver = Receiver(context=certified[0])
    try:
        assert sent(receiver.url) == Attempt(Outcome.RETRIED, "no answer (SSLError)")
        assert not receiver.got
        assert sent(receiver.url, ca_file=certified[1]) == Attempt(Outcome.TAKEN)
    finally:
        receiver.close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_refused_and_not_followed(status: int):
    other = Receiver()
    receiver = Receiver(lambda _: Answer(status, (("location", other.url),)))
    try:
        attempt = sent(receiver.url)
    finally:
        receiver.close()
        other.close()
    assert attempt == Attempt(Outcome.REFUSED, f"status {status}, a redirect, which is not followed")
    assert (len(receiver.got), other.got) == (1, [])


@pytest.mark.parametrize(
    ("text", "pause_s"), [("7", 7), ("999999999", 3600), ("-5", 0), ("soon", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)]
)
def test_retry_after_is_bounded(text: str, pause_s: float):
    receiver = Receiver(lambda _: Answer(503, (("retry-after", text),)))
    try:
        assert sent(receiver.url).retry_after_s == pause_s
    finally:
        receiver.close()


def test_what_arrives_is_signed_as_openssl_signs_it():
    receiver = Receiver()
    secret = "whsec_" + base64.b64encode(KEY).decode()
    subscription = Subscription("s", receiver.url, Group(), secret=secret)
    message = Messages(subscription, TableLogs()).of(transition(new_uid(), 3))
    try:
        assert sent(receiver.url, message, secret=secret).outcome is Outcome.TAKEN
    finally:
        receiver.close()
    (got,) = receiver.got
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{KEY.hex()}", "-binary"]
    digest = subprocess.run(command, input=signed, capture_output=True, check=True).stdout
    assert got.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
