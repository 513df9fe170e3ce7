"""The process of the service, killed in the middle of a delivery; and what its log says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from tests.unit.services.fleet import write
from tests.unit.webhooks.conftest import Hooks
from tests.unit.webhooks.receiver import Answer

SECRET = "a-secret-that-no-log-may-show"


def start(hooks: Hooks) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "TIDELINE_STATE_FOLDER": str(hooks.folder / "state"),
        "TIDELINE_WEBHOOKS__SUBSCRIPTIONS": str(hooks.file),
        "TIDELINE_WEBHOOKS__RETRY_MAX_S": "0.05",
        "HOOK_SECRET": SECRET,
    }
    return subprocess.Popen([sys.executable, "-m", "tideline_webhooks"], env=environment, stderr=subprocess.PIPE)


def test_a_delivery_that_was_cut_off_by_a_kill_is_made_again_with_the_same_id(hooks: Hooks):
    asked, free = threading.Event(), threading.Event()

    def answer(received):
        if received.place[1] == 2 and not asked.is_set():
            asked.set()
            free.wait(60)
            return Answer(500)
        return Answer(500 if received.place[1] == 3 and sum(r.place[1] == 3 for r in receiver.got) == 0 else 204)

    receiver = hooks.receiver(answer)
    hooks.subscribe({"name": "all", "url": f"{receiver.url}/{SECRET}", "secret_env": "HOOK_SECRET"})
    table = hooks.create("a")
    write(table, 0)
    write(table, 10)
    hooks.publish()
    killed = start(hooks)
    assert asked.wait(60)
    killed.kill()
    told = killed.communicate()[1]
    free.set()
    again = start(hooks)
    receiver.wait(lambda: receiver.taken[-1:] != [] and receiver.taken[-1].place[1] == 4)
    again.send_signal(signal.SIGTERM)
    told += again.communicate(timeout=60)[1]
    assert again.returncode == 0
    ids: dict[int, set[str]] = {}
    for one in receiver.got:
        ids.setdefault(one.place[1], set()).add(one.headers["webhook-id"])
    assert {number: len(found) for number, found in ids.items()} == {1: 1, 2: 1, 3: 1, 4: 1}
    assert sum(one.place[1] == 2 for one in receiver.got) == 2
    assert all("webhook-signature" in one.headers and one.path.endswith(SECRET) for one in receiver.got)
    assert b"delivery failed, trying again" in told
    assert SECRET.encode() not in told
