"""Hadoop's S3 file system (S3A), with which Spark's own scans read `s3://` tables: settings, packages, and what is missing.

The engine's workers and the JVM share one set of settings, the variables `AWS_*` of the environment. This module is the only
place that translates them into `fs.s3a.*`. Credentials are not translated: in each process S3A reads the same variables, or
asks the role of the machine or pod, in the order of the engine. So no Spark setting, plan, page of the UI or event log holds a
secret.

A JVM keeps the client of a bucket: settings that change while it runs have no effect on buckets that it has opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyspark
from pyspark.sql import SparkSession

from tideline_spark.errors import ObjectStoreScanUnavailable
from tideline_table.storage import object_store_endpoint, object_store_region, object_store_settings

FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
SDK_CLIENT = "software.amazon.awssdk.services.s3.S3Client"
CREDENTIAL_PROVIDERS = (
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
    "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
)
"""Static keys, web identity, then the role of the container or machine: the order in which obstore tries them."""
_ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
CREDENTIAL_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
)
HADOOP_AWS = "org.apache.hadoop:hadoop-aws"
SDK = "software.amazon.awssdk"
SDK_VERSIONS = {"3.5.0": "2.35.4"}
"""By version of Hadoop, the version of the AWS SDK that its hadoop-aws was built with, where S3A was tested with the SDK's
modules."""
SDK_MODULES = ("s3", "s3-transfer-manager", "sts")
"""What S3A loads of the SDK; with what they depend on 13 MB. The bundle that hadoop-aws asks for has all services of AWS, 686
MB."""
EXCLUDED = (
    f"{SDK}:bundle",
    "org.wildfly.openssl:wildfly-openssl",
    *(f"{group}:*" for group in ("io.netty", "org.slf4j", "commons-codec", "commons-logging", "org.apache.httpcomponents")),
)
"""The bundle; an optional TLS library; and what Spark has in newer versions."""
_ENCRYPTION = {"AES256": "SSE-S3", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}
_S3 = "s3://"
_JAR_VERSION = re.compile(r"hadoop-aws-(\d[\w.-]*?)\.jar$")
_CHECKED: set[str] = set()
"""Ids of the applications whose class path was found complete."""


def hadoop_settings(settings: Mapping[str, str], bucket: str = "") -> dict[str, str]:
    """Translate `settings` (of `object_store_settings`) into Hadoop's. No secret is among them.

    A virtual-hosted endpoint begins with the name of a bucket, which S3A adds itself: it is used only with that `bucket`.
    """
    endpoint, virtual_hosted = object_store_endpoint(settings), _is_set(settings, "virtual_hosted_style_request")
    chosen = {
        "fs.s3.impl": FILE_SYSTEM,
        "fs.s3a.aws.credentials.provider": _ANONYMOUS if _is_set(settings, "skip_signature") else ",".join(CREDENTIAL_PROVIDERS),
        "fs.s3a.endpoint.region": object_store_region(settings),
        "fs.s3a.path.style.access": "false" if virtual_hosted else "true",
    }
    if endpoint and virtual_hosted:
        endpoint = _without_bucket(endpoint, bucket)
    if endpoint:
        chosen["fs.s3a.endpoint"] = endpoint
        chosen["fs.s3a.connection.ssl.enabled"] = "false" if endpoint.startswith("http://") else "true"
    if _is_set(settings, "request_payer"):
        chosen["fs.s3a.requester.pays.enabled"] = "true"
    algorithm = _ENCRYPTION.get(settings.get("server_side_encryption", ""))
    if algorithm:
        chosen["fs.s3a.encryption.algorithm"] = algorithm
        if settings.get("sse_kms_key_id"):
            chosen["fs.s3a.encryption.key"] = settings["sse_kms_key_id"]
    return chosen


def session_settings(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of a session in which `s3://` paths of Spark itself work, such as checkpoints and other sources.

    Scans of tables need none of them: they bring their own (`scan_options`).
    """
    chosen = hadoop_settings(object_store_settings(environment=environment))
    # For FileContext, which Spark uses for checkpoints. Reader options are in lower case, so that this is none.
    chosen["fs.AbstractFileSystem.s3.impl"] = "org.apache.hadoop.fs.s3a.S3A"
    return {f"spark.hadoop.{key}": value for key, value in chosen.items()}


def package_settings(hadoop: str) -> dict[str, str]:
    """Return the settings with which Spark resolves S3A for a version of Hadoop at its start.

    For a Hadoop that is not in `SDK_VERSIONS` hadoop-aws names the SDK's bundle itself.
    """
    sdk, file_system = SDK_VERSIONS.get(hadoop), f"{HADOOP_AWS}:{hadoop}"
    if sdk is None:
        return {"spark.jars.packages": file_system}
    modules = [f"{SDK}:{name}:{sdk}" for name in SDK_MODULES]
    return {"spark.jars.packages": ",".join([file_system, *modules]), "spark.jars.excludes": ",".join(EXCLUDED)}


def local_packages(jars: Path | None = None) -> dict[str, str]:
    """Return `package_settings` for the Spark that this process starts; nothing if S3A is among its `jars`.

    Raises `ObjectStoreScanUnavailable` if the version of Hadoop is unknown.
    """
    folder = jars or spark_jars()
    if any(folder.glob("hadoop-aws-*.jar")):
        return {}
    for path in folder.glob("hadoop-client-api-*.jar"):
        return package_settings(path.stem.removeprefix("hadoop-client-api-"))
    raise ObjectStoreScanUnavailable(
        f"no hadoop-client-api-*.jar in {folder}",
        expected="the jars of Spark, to know the version of Hadoop",
        remedy="set SPARK_HOME to a Spark with Hadoop, or set spark.jars.packages yourself",
    )


def spark_jars(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with the jars of the Spark that this process starts."""
    return Path(environment.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)) / "jars"


def scan_options(spark: SparkSession, root: str) -> dict[str, str]:
    """Return options for a scan of files of the table at `root`; none unless it is in an object store.

    Raises `ObjectStoreScanUnavailable` if the session lacks S3A, or if its JVM has other credentials than this process.
    """
    if not root.startswith(_S3):
        return {}
    settings, bucket = object_store_settings(), root.removeprefix(_S3).partition("/")[0]
    check_settings(settings, bucket)
    jvm: Any = spark._jvm  # noqa: SLF001 - class path and environment of the JVM have no public access in Python
    found = {name: jvm.java.lang.System.getenv(name) or "" for name in CREDENTIAL_VARIABLES}
    check_credentials(found, os.environ)
    application = str(spark.sparkContext.applicationId)
    if application not in _CHECKED:
        _check_classes(spark, jvm, root)
        _CHECKED.add(application)
    return hadoop_settings(settings, bucket)


def check_settings(settings: Mapping[str, str], bucket: str) -> None:
    """Raise `ObjectStoreScanUnavailable` for settings of the engine that S3A cannot follow."""
    if settings.get("sse_customer_key_base64"):
        raise ObjectStoreScanUnavailable(
            "AWS_SSE_CUSTOMER_KEY_BASE64",
            expected="encryption with keys of the store or of KMS: Hadoop takes a customer's key only as a setting, which Spark "
            "shows",
            remedy="use another encryption, or read the table without Spark's scan: spark.read.format('tideline')",
        )
    if settings.get("token") and not settings.get("session_token"):
        raise ObjectStoreScanUnavailable(
            "AWS_TOKEN", expected="the session token in AWS_SESSION_TOKEN, where Hadoop looks for it", remedy="rename the variable"
        )
    endpoint = object_store_endpoint(settings)
    if endpoint and _is_set(settings, "virtual_hosted_style_request") and not _without_bucket(endpoint, bucket):
        raise ObjectStoreScanUnavailable(
            f"endpoint {endpoint!r} with AWS_VIRTUAL_HOSTED_STYLE_REQUEST", expected=f"a host that begins with {bucket + '.'!r}"
        )


def check_credentials(in_jvm: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise `ObjectStoreScanUnavailable` if variables of the JVM's environment differ from those of this process.

    No value is named.
    """
    different = [name for name in CREDENTIAL_VARIABLES if (in_jvm.get(name) or "") != (here.get(name) or "")]
    if different:
        raise ObjectStoreScanUnavailable(
            f"{', '.join(different)} in this process other than in Spark's JVM",
            expected="the same credentials in both, set before the session starts",
            remedy="end Python, set the variables, then start the session",
        )


def check_versions(hadoop: str, jar: str, root: str) -> None:
    """Raise `ObjectStoreScanUnavailable` if the hadoop-aws in the file `jar` belongs to another minor release than `hadoop`."""
    named = _JAR_VERSION.search(jar)
    if named is not None and named[1].split(".")[:2] != hadoop.split(".")[:2]:
        raise _missing(f"hadoop-aws {named[1]} beside Hadoop {hadoop}", hadoop, root)


def _check_classes(spark: SparkSession, jvm: Any, root: str) -> None:
    hadoop = str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
    # Hadoop finds file systems by the class loader of its configuration.
    configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    file_system = configuration.getClassByNameOrNull(FILE_SYSTEM)
    if file_system is None:
        raise _missing(f"Spark {spark.version} with Hadoop {hadoop} and without hadoop-aws", hadoop, root)
    source = file_system.getProtectionDomain().getCodeSource()
    check_versions(hadoop, str(source.getLocation()) if source is not None else "", root)
    if configuration.getClassByNameOrNull(SDK_CLIENT) is None:
        raise _missing(f"hadoop-aws for Hadoop {hadoop} without the AWS SDK ({SDK_CLIENT})", hadoop, root)


def _missing(found: str, hadoop: str, root: str) -> ObjectStoreScanUnavailable:
    return ObjectStoreScanUnavailable(
        found,
        expected=f"hadoop-aws {hadoop} and the AWS SDK, with which Spark scans {root}",
        remedy=f"set spark.jars.packages={HADOOP_AWS}:{hadoop} before the session starts; or use the Spark image, or "
        "local_session(with_s3=True)",
    )


def _is_set(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").lower() in ("true", "1", "yes", "on", "y")


def _without_bucket(endpoint: str, bucket: str) -> str:
    """Return a virtual-hosted endpoint without its bucket; empty if it begins with another name."""
    split = urlsplit(endpoint)
    if not bucket or not split.netloc.startswith(f"{bucket}."):
        return ""
    return split._replace(netloc=split.netloc.removeprefix(f"{bucket}.")).geturl()
