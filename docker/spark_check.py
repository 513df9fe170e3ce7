"""Check in the build of the Spark image that Spark's jars suffice for tables in an object store. No request is sent."""

from __future__ import annotations

from typing import Any

from tideline_spark.hadoop_s3 import FILE_SYSTEM, scan_options
from tideline_spark.session import local_session, stop_session

ROOT = "s3://bucket/table"


def main() -> None:
    """Start a session and make the client of a bucket."""
    spark = local_session("check", 1, short_lived=True)
    try:
        options = scan_options(spark, ROOT)
        jvm: Any = spark._jvm  # noqa: SLF001 - file systems have no public access in Python
        configuration = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        for key, value in options.items():
            configuration.set(key, value)
        found = jvm.org.apache.hadoop.fs.Path(ROOT).getFileSystem(configuration).getClass().getName()
    finally:
        stop_session(spark)
    if found != FILE_SYSTEM:
        raise SystemExit(f"found {found} for {ROOT}; expected {FILE_SYSTEM}")
    print(f"{ROOT} is read by {found}")


if __name__ == "__main__":
    main()
