"""A process that contends for a lock. Run as: contender.py <lock url> <folder> <rounds> <name>.

It says "ready", waits for a line, then increments a counter file `rounds` times under the lock "contended", each time without any
protection but that lock. With 0 rounds it acquires the lock, says "held" and waits to be killed. Exit code 3: another process
was inside.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tideline_locks import open_lock_provider
from tideline_table.clock import SystemClock


def main(url: str, folder: Path, rounds: int, me: str) -> int:
    provider = open_lock_provider(url, clock=SystemClock())
    print("ready", flush=True)
    sys.stdin.readline()
    if rounds == 0:
        lease = provider.acquire("contended", owner=me, ttl_s=1, wait_s=60)
        print("held", flush=True)
        sys.stdin.readline()
        lease.release()
        return 0
    for _ in range(rounds):
        with provider.acquire("contended", owner=me, ttl_s=60, wait_s=120) as lease:
            try:
                os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return 3
            count = int((folder / "counter").read_text())
            time.sleep(0.001)
            (folder / "counter").write_text(str(count + 1))
            os.unlink(folder / "inside")
            if not lease.release():
                return 4
    provider.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
