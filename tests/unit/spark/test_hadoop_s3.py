"""Settings of the engine in Hadoop's words, packages by version, and one line for what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.real.object_store import SPARK_S3_JARS

from tideline_spark.errors import ObjectStoreScanUnavailable
from tideline_spark.hadoop_s3 import (
    CREDENTIAL_PROVIDERS,
    EXCLUDED,
    HADOOP_AWS,
    SDK,
    SDK_MODULES,
    SDK_VERSIONS,
    check_credentials,
    check_settings,
    check_versions,
    hadoop_settings,
    local_packages,
    package_settings,
    scan_options,
    session_settings,
    spark_jars,
)
from tideline_table.storage import object_store_settings

SECRETS = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_SESSION_TOKEN": "a-token"}


def translated(bucket: str = "lake", **variables: str) -> dict[str, str]:
    return hadoop_settings(object_store_settings(environment=variables), bucket)


def test_without_settings_the_cloud_is_used_as_the_engine_does() -> None:
    assert translated() == {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.aws.credentials.provider": ",".join(CREDENTIAL_PROVIDERS),
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
    }


def test_credentials_are_never_among_the_settings() -> None:
    assert translated(**SECRETS) == translated()
    shown = json.dumps(session_settings({**SECRETS, "AWS_ENDPOINT_URL": "https://store.example"}))
    assert not any(value in shown for value in SECRETS.values())
    assert "https://store.example" in shown


@pytest.mark.parametrize(("endpoint", "ssl"), [("http://store.example:9000/", "false"), ("https://store.example:9000", "true")])
def test_an_endpoint_decides_on_encryption_in_transit(endpoint: str, ssl: str) -> None:
    found = translated(AWS_ENDPOINT_URL=endpoint, AWS_REGION="eu-central-1")
    assert found["fs.s3a.endpoint"] == endpoint.rstrip("/")
    assert found["fs.s3a.connection.ssl.enabled"] == ssl
    assert found["fs.s3a.endpoint.region"] == "eu-central-1"


def test_the_endpoint_of_s3_alone_and_the_region_win() -> None:
    found = translated(
        AWS_ENDPOINT_URL="https://all.example",
        AWS_ENDPOINT_URL_S3="https://s3.example",
        AWS_DEFAULT_REGION="eu-west-1",
        AWS_REGION="eu-north-1",
    )
    assert (found["fs.s3a.endpoint"], found["fs.s3a.endpoint.region"]) == ("https://s3.example", "eu-north-1")
    assert translated(AWS_DEFAULT_REGION="eu-west-1")["fs.s3a.endpoint.region"] == "eu-west-1"


def test_a_virtual_hosted_endpoint_is_used_without_its_bucket() -> None:
    variables = {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true", "AWS_ENDPOINT_URL": "https://lake.s3.example:444"}
    found = translated(**variables)
    assert found["fs.s3a.path.style.access"] == "false"
    assert found["fs.s3a.endpoint"] == "https://s3.example:444"
    assert "fs.s3a.endpoint" not in translated("", **variables), "a session does not know the bucket"
    with pytest.raises(ObjectStoreScanUnavailable, match=r"a host that begins with 'other\.'"):
        check_settings(object_store_settings(environment=variables), "other")


def test_unsigned_requests_payment_and_encryption() -> None:
    found = translated(
        AWS_SKIP_SIGNATURE="true",
        AWS_REQUEST_PAYER="true",
        AWS_SERVER_SIDE_ENCRYPTION="aws:kms",
        AWS_SSE_KMS_KEY_ID="arn:aws:kms:eu-central-1:1:key/2",
    )
    assert found["fs.s3a.aws.credentials.provider"] == "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    assert found["fs.s3a.requester.pays.enabled"] == "true"
    assert found["fs.s3a.encryption.algorithm"] == "SSE-KMS"
    assert found["fs.s3a.encryption.key"] == "arn:aws:kms:eu-central-1:1:key/2"


def test_settings_that_hadoop_would_show_or_not_find_are_refused_without_their_values() -> None:
    for name, word in (("AWS_SSE_CUSTOMER_KEY_BASE64", "another encryption"), ("AWS_TOKEN", "AWS_SESSION_TOKEN")):
        settings = object_store_settings(environment={name: "a-secret"})
        with pytest.raises(ObjectStoreScanUnavailable, match=word) as caught:
            check_settings(settings, "lake")
        assert caught.value.found == name
        assert "a-secret" not in str(caught.value)
        assert "a-secret" not in hadoop_settings(settings).values()


def test_options_override_the_environment() -> None:
    found = object_store_settings(
        {"AWS_REGION": "b", "endpoint": "https://b.example"}, {"AWS_REGION": "a", "OTHER": "x", "AWS_X": ""}
    )
    assert found == {"region": "b", "endpoint": "https://b.example"}


def test_keys_of_reader_options_are_in_lower_case() -> None:
    """Spark may pass options on in lower case."""
    assert all(key == key.lower() for key in translated(AWS_ENDPOINT_URL="https://store.example"))


def test_credentials_that_differ_are_named_without_their_values() -> None:
    check_credentials({**SECRETS, "AWS_ROLE_ARN": ""}, {**SECRETS, "OTHER": "x"})
    with pytest.raises(ObjectStoreScanUnavailable) as caught:
        check_credentials({}, SECRETS)
    assert caught.value.found.startswith("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN in this process")
    assert not any(value in str(caught.value) for value in SECRETS.values())


@pytest.mark.parametrize(
    "jar", ["file:/jars/hadoop-aws-3.5.1.jar", "file:/ivy/org.apache.hadoop_hadoop-aws-3.5.0-x1.jar", "file:/all.jar"]
)
def test_hadoop_aws_of_the_same_minor_release_or_unknown_is_accepted(jar: str) -> None:
    check_versions("3.5.0", jar, "s3://lake/t")


def test_hadoop_aws_of_another_release_is_refused_with_both_versions() -> None:
    with pytest.raises(ObjectStoreScanUnavailable, match=r"hadoop-aws 3\.3\.4 beside Hadoop 3\.5\.0.*hadoop-aws:3\.5\.0") as caught:
        check_versions("3.5.0", "file:/ivy/org.apache.hadoop_hadoop-aws-3.3.4.jar", "s3://lake/t")
    assert "\n" not in str(caught.value)


def test_tables_on_disks_need_no_options() -> None:
    assert scan_options(None, "file:///data/t") == {}  # type: ignore[arg-type]


def test_packages_of_an_unknown_hadoop_are_what_hadoop_aws_names() -> None:
    assert package_settings("3.4.9") == {"spark.jars.packages": f"{HADOOP_AWS}:3.4.9"}
    known = package_settings("3.5.0")["spark.jars.packages"].split(",")
    assert known == [f"{HADOOP_AWS}:3.5.0", *(f"{SDK}:{name}:2.35.4" for name in SDK_MODULES)]


def test_local_packages_follow_the_jars_of_spark(tmp_path: Path) -> None:
    with pytest.raises(ObjectStoreScanUnavailable, match="no hadoop-client-api"):
        local_packages(tmp_path)
    (tmp_path / "hadoop-client-api-3.4.9.jar").touch()
    assert local_packages(tmp_path) == package_settings("3.4.9")
    (tmp_path / "hadoop-aws-3.4.9.jar").touch()
    assert local_packages(tmp_path) == {}, "the Spark image has it"


def test_the_pinned_jars_fit_spark_and_the_packages() -> None:
    """After an update of PySpark this fails until jars and versions are pinned anew; see docs/object-store.md."""
    (client,) = spark_jars({}).glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    pins = [text.split(":") for text in json.loads(SPARK_S3_JARS.read_text())]
    assert [version for group, _, version in pins if group == "org.apache.hadoop"] == [hadoop]
    assert {version for group, _, version in pins if group == SDK} == {SDK_VERSIONS[hadoop]}
    assert {name for group, name, _ in pins if group == SDK} >= set(SDK_MODULES)
    excluded = {text.partition(":")[0] for text in EXCLUDED if text.endswith(":*")}
    assert not excluded & {group for group, _, _ in pins}
    assert f"{SDK}:bundle" in EXCLUDED


def test_no_pinned_jar_is_among_sparks_own() -> None:
    own = {path.stem.rpartition("-")[0] for path in spark_jars({}).glob("*.jar")}
    assert not own & {text.split(":")[1] for text in json.loads(SPARK_S3_JARS.read_text())}
