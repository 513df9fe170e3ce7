"""A process that takes a lock of Hudi through Hudi's own provider, which the options name, in a JVM of its own.

Run by the peer's Python: hudi_lock_holder.py <java> <class path> <options as JSON>. It says "ready", then answers each line:
`take SECONDS` with yes or no, `give`, and `count TIMES FOLDER`: it increments the counter file so often under the lock, as
`tests/contract/locks/contender.py` does, and answers yes, or no if another process was inside.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import reduce
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

WAIT_S = 120
BETWEEN_S = 0.2


def main(java: str, class_path: str, options: str) -> None:
    port, token = launch_gateway(classpath=class_path, java_path=java, enable_auth=True, die_on_exit=True, javaopts=["-Xmx192m"])
    jvm = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token)).jvm
    settings = jvm.org.apache.hudi.common.config.TypedProperties()
    for key, value in json.loads(options).items():
        settings.setProperty(key, value)
    # The defaults that a writer fills in before it makes the provider: 0.15 asks for them there.
    filled = jvm.org.apache.hudi.config.HoodieLockConfig.newBuilder().fromProperties(settings).build().getProps()
    storage = jvm.org.apache.hudi.storage.hadoop.HadoopStorageConfiguration(jvm.org.apache.hadoop.conf.Configuration(False))
    provider = reduce(getattr, filled.getProperty("hoodie.write.lock.provider").split("."), jvm)
    lock = provider(jvm.org.apache.hudi.common.config.LockConfiguration(filled), storage)
    say("ready")
    for line in sys.stdin:
        match line.split():
            case ["take", seconds]:
                say(taken(jvm, lock, float(seconds)))
            case ["give"]:
                lock.unlock()
                say("given")
            case ["count", times, folder]:
                say(all(counted(jvm, lock, Path(folder)) for _ in range(int(times))))


def say(answer: str | bool) -> None:
    print(answer if isinstance(answer, str) else "yes" if answer else "no", flush=True)


def taken(jvm: Any, lock: Any, wait_s: float) -> bool:
    """Whether the lock was to be had. Hudi's lock manager asks a provider again that does not wait, and so does this."""
    deadline_s = time.monotonic() + wait_s
    while not (is_taken := taken_once(jvm, lock, wait_s)) and time.monotonic() < deadline_s:
        time.sleep(BETWEEN_S)
    return is_taken


def taken_once(jvm: Any, lock: Any, wait_s: float) -> bool:
    try:
        return bool(lock.tryLock(int(wait_s * 1000), jvm.java.util.concurrent.TimeUnit.MILLISECONDS))
    except Py4JJavaError as error:
        # What Hudi says after it waited in vain.
        if "FAILED_TO_ACQUIRE" not in str(error.java_exception.getMessage()):
            raise
        return False


def counted(jvm: Any, lock: Any, folder: Path) -> bool:
    assert taken(jvm, lock, WAIT_S)
    try:
        os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    count = int((folder / "counter").read_text())
    time.sleep(0.001)
    (folder / "counter").write_text(str(count + 1))
    os.unlink(folder / "inside")
    lock.unlock()
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
