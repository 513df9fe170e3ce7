"""Write the CycloneDX bill of materials of an image from inside it: Python packages, Debian packages, jars of Spark.

Runs as `python -m docker.bill_of_materials` in a stage of the Dockerfiles.

cyclonedx-py lists the Python packages; what it does not know is added from Debian's status file and the names of the jars. The
result is checked against CycloneDX's schema.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from docker.components import debian_components, jar_components

STATUS_FILE = Path("/var/lib/dpkg/status")
SPEC_VERSION = "1.6"


def python_bill(environment: Path) -> dict[str, Any]:
    """Return the bill of materials of a virtual environment."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--spec-version", SPEC_VERSION]
    done = subprocess.run([*command, str(environment / "bin" / "python")], check=True, stdout=subprocess.PIPE, text=True)
    bill: dict[str, Any] = json.loads(done.stdout)
    return bill


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--environment", required=True, type=Path, help="the virtual environment")
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    bill = python_bill(arguments.environment)
    bill.setdefault("metadata", {})["component"] = {
        "type": "container",
        "name": arguments.name,
        "version": arguments.version,
        "bom-ref": f"{arguments.name}@{arguments.version}",
    }
    components = bill.setdefault("components", [])
    components += debian_components(STATUS_FILE.read_text())
    for jars in arguments.environment.glob("lib/python3*/site-packages/pyspark/jars"):
        components += jar_components(jars)
    # The references of the environment's root component are gone with it.
    references = {component["bom-ref"] for component in components}
    bill["dependencies"] = [entry for entry in bill.get("dependencies", []) if entry["ref"] in references]
    text = json.dumps(bill, indent=1)
    if problem := JsonStrictValidator(SchemaVersion.from_version(SPEC_VERSION)).validate_str(text):
        sys.exit(f"the bill of materials does not fit CycloneDX {SPEC_VERSION}: {problem}")
    arguments.output.write_text(text)
    print(f"{len(components)} components")


if __name__ == "__main__":
    main()
