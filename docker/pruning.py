"""Delete from a virtual environment what no process of an image reads: `python pruning.py FOLDER`.

Run it in a stage that the image copies from: files that a later layer of the same image deletes still count.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

# Below site-packages. A pattern that matches nothing belongs to a package that the image does not have.
UNUSED = (
    # Tests and sources for compilers.
    "numpy/**/tests",
    "pandas/tests",
    "pyarrow/tests",
    "pyarrow/include",
    "pyarrow/includes",
    "pyarrow/src",
    "pyarrow/*.pxi",
    "pyarrow/*.pyx",
    "pyarrow/*.pxd",
    # Arrow's network protocol, which is imported by name only.
    "pyarrow/*flight*",
    # The asynchronous copy of the Kubernetes client.
    "kubernetes/aio",
    "pyspark/examples",
    "pyspark/**/tests",
    "pyspark/bin/*.cmd",
    "pyspark/sbin",
)
# Libraries of Spark that neither DataFrames nor table services load. icu4j stays: without it `spark.range` fails.
UNUSED_JARS = (
    "algebra_",
    "breeze",
    "cats-kernel",
    "curator-",
    "derby",
    "hive-",
    "rocksdbjni",
    "scala-compiler",
    "spark-connect_",
    "spark-hive",
    "spark-mllib",
    "spark-yarn",
    "spire",
    "zookeeper",
)
NEEDED_JARS = ("hive-storage-api",)


def is_unused(jar: str) -> bool:
    """Return whether a jar of Spark, by its file name, is deleted."""
    return jar.startswith(UNUSED_JARS) and not jar.startswith(NEEDED_JARS)


def unused(packages: Path) -> list[Path]:
    """Return files and folders in site-packages that are deleted."""
    found = [path for pattern in UNUSED for path in packages.glob(pattern)]
    return found + [path for path in packages.glob("pyspark/jars/*.jar") if is_unused(path.name)]


def main() -> None:
    """Delete, and print how much that was."""
    (packages,) = Path(sys.argv[1]).glob("lib/python3*/site-packages")
    size_bytes = 0
    for path in unused(packages):
        if path.is_dir():
            size_bytes += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            shutil.rmtree(path)
        elif path.exists():
            size_bytes += path.stat().st_size
            path.unlink()
    print(f"deleted {size_bytes / 1e6:.0f} MB of {packages}")


if __name__ == "__main__":
    main()
