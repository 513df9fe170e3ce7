"""Components of a CycloneDX bill of materials that are not Python packages."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

JAR_NAME = re.compile(r"^(?P<name>.+?)-(?P<version>\d[^/]*)\.jar$")


def debian_components(status: str) -> list[dict[str, Any]]:
    """Return a component for each installed package in the text of dpkg's status file."""
    components = []
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status") != "install ok installed":
            continue
        name, version = fields["Package"], fields["Version"]
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={fields['Architecture']}"
        components.append({"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl})
    return components


def jar_components(jars: Path) -> list[dict[str, Any]]:
    """Return a component for each jar in a folder.

    File names hold no group, so that there is no package URL; the hash identifies.
    """
    components = []
    for path in sorted(jars.glob("*.jar")):
        found = JAR_NAME.match(path.name)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        component = {"type": "library", "name": found["name"] if found else path.stem, "bom-ref": f"jar:{path.name}"}
        if found:
            component["version"] = found["version"]
        components.append({**component, "hashes": [{"alg": "SHA-256", "content": digest}]})
    return components
