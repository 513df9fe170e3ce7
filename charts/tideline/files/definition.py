"""Apply the definition of HudiTable resources of a release, by server-side apply: definition.py FILE. Standard library only.

Exit code 1, with the answer of the API server, if it refuses, and if the installed definition is of a newer release: resources
would lose the fields that only that one has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

PLACE = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/huditables.tideline.dev"
APPLY = PLACE + "?fieldManager=tideline-upgrade&force=true"
RELEASE = "tideline.dev/release"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 4096


def main(arguments: Sequence[str]) -> int:
    """Apply the definition once. helm runs the pod before it changes anything else, and stops if it fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    # Each pod has this address, whatever its service links, and the certificate names it.
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    parser.add_argument("--server", default=f"https://{host}:{port}")
    parser.add_argument("--account", type=Path, default=Path(ACCOUNT))
    given = parser.parse_args(arguments)
    headers = {"Authorization": f"Bearer {(given.account / 'token').read_text().strip()}"}
    trusted = ssl.create_default_context(cafile=str(given.account / "ca.crt"))
    wanted = given.file.read_text()
    own = re.search(rf'^ *{re.escape(RELEASE)}: "(.+)"$', wanted, re.MULTILINE)
    try:
        with urllib.request.urlopen(
            urllib.request.Request(given.server + PLACE, headers=headers), timeout=TIMEOUT_S, context=trusted
        ) as answer:
            installed = json.load(answer)["metadata"].get("annotations", {}).get(RELEASE, "")
        if own is not None and numbers(installed) > numbers(own[1]):
            print(
                f"the definition of HudiTable resources is that of release {installed}, newer than this chart's {own[1]}; upgrade "
                f"by a chart of {installed} or later, or leave it as it is: tableResources.upgradeDefinition=false",
                file=sys.stderr,
            )
            return 1
        headers["Content-Type"] = "application/apply-patch+yaml"
        request = urllib.request.Request(given.server + APPLY, wanted.encode(), headers, method="PATCH")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=trusted) as answer:
            print(f"applied: {answer.status}")
    except urllib.error.HTTPError as error:
        found = error.read(MAX_ANSWER_BYTES).decode(errors="replace")
        print(f"the API server refuses the definition of HudiTable resources ({error.code}): {found}", file=sys.stderr)
        return 1
    return 0


def numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release, without what follows them: a candidate of a release counts as the release."""
    found = re.match(r"\d+(\.\d+)*", release)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
