"""Ask the probes of every pod behind headless Services: probes.py --port=8080 --timeout=120 SERVICE=PODS ...

Exit code 0 if each Service has so many pods and all of them answer /healthz and /readyz with 200 in time, else 1. A pod that is
ready and degraded counts as wrong: it may be unable to search for tables and stays ready for a while. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

PAUSE_S = 2.0
REQUEST_TIMEOUT_S = 6.0
MAX_ANSWER_BYTES = 64 * 1024


def addresses(service: str, port: int) -> list[str]:
    """Return the addresses of the pods behind `service`; empty if there is none."""
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(service, port, type=socket.SOCK_STREAM)})
    except OSError:
        return []


def answer(address: str, port: int, path: str) -> str | None:
    """Return None for a probe that answers 200 and names nothing as degraded, else what was found."""
    host = f"[{address}]" if ":" in address else address
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=REQUEST_TIMEOUT_S) as reply:
            found = json.loads(reply.read(MAX_ANSWER_BYTES) or b"{}")
            if not found.get("degraded"):
                return None
            # The causes are for clients with the token only; without it, they are in the pod's log.
            why = found.get("conditions") or found["degraded"]
            return f"{path} answers 200, degraded: {'; '.join(why)}"
    except urllib.error.HTTPError as error:
        return f"{path} answers {error.code}: {error.read(500).decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return f"{path} does not answer: {error}"


def problems(service: str, pods: int, port: int) -> list[str]:
    """Return what is wrong with the pods of `service` now."""
    found = addresses(service, port)
    wrong = [
        f"{service} at {place}: {why}" for place in found for path in ("/healthz", "/readyz") if (why := answer(place, port, path))
    ]
    if len(found) != pods:
        wrong.append(f"{service}: found {len(found)} pods, expected {pods}")
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Ask until everything is right or the time is over; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("targets", nargs="+", metavar="SERVICE=PODS")
    arguments = parser.parse_args(argv)
    targets = [(name, int(pods)) for name, _, pods in (target.partition("=") for target in arguments.targets)]
    deadline_s = time.monotonic() + arguments.timeout
    while wrong := [problem for name, pods in targets for problem in problems(name, pods, arguments.port)]:
        if time.monotonic() > deadline_s:
            print("\n".join(wrong), file=sys.stderr)
            return 1
        time.sleep(PAUSE_S)
    print(json.dumps({"ready": dict(targets)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
