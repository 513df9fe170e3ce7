"""Health check of the service image, for engines that ask the image: exit code 0 if every service of this container is alive.

A service writes its address into `$TIDELINE_STATE_FOLDER/<service>.json`. Kubernetes asks `/healthz` and `/readyz` itself.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_S = 4.0


def addresses(state_folder: Path) -> list[str]:
    """Return the root URLs that services wrote into their state folder."""
    found = []
    for path in sorted(state_folder.glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and {"service", "host", "port"} <= content.keys():
            host = f"[{content['host']}]" if ":" in content["host"] else content["host"]
            found.append(f"http://{host}:{content['port']}")
    return found


def main() -> int:
    """Return the exit code."""
    running = addresses(Path(os.environ["TIDELINE_STATE_FOLDER"]))
    if not running:
        print("no service has written its address yet")
        return 1
    for address in running:
        try:
            urllib.request.urlopen(f"{address}/healthz", timeout=TIMEOUT_S).close()
        except (OSError, urllib.error.URLError) as error:
            print(f"{address}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
