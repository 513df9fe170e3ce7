"""Temporary credentials of MinIO with a policy of their own (AssumeRole of its security token service)."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import urllib.parse
import urllib.request
from xml.etree import ElementTree as ET

from tests.real.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStoreServer

_SERVICE = "sts"


def credentials_with(server: ObjectStoreServer, policy: str) -> dict[str, str]:
    """Return credentials, as variables of a client's environment, for what this policy (JSON) allows and nothing else."""
    form = {"Action": "AssumeRole", "Version": "2011-06-15", "DurationSeconds": "3600", "Policy": policy}
    body = urllib.parse.urlencode(form).encode()
    request = urllib.request.Request(server.endpoint, body, _signed(f"{server.host}:{server.port}", body), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = ET.fromstring(answer.read()).find(".//{*}Credentials")
    assert found is not None
    names = {"AccessKeyId": "AWS_ACCESS_KEY_ID", "SecretAccessKey": "AWS_SECRET_ACCESS_KEY", "SessionToken": "AWS_SESSION_TOKEN"}
    return {variable: found.findtext(f"{{*}}{name}", "") for name, variable in names.items()}


def _signed(host: str, body: bytes) -> dict[str, str]:
    """Return the headers of a request with a signature of version 4."""
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{now[:8]}/{REGION}/{_SERVICE}/aws4_request"
    headers = {"content-type": "application/x-www-form-urlencoded", "host": host, "x-amz-date": now}
    named = ";".join(headers)
    lines = ["POST", "/", "", *(f"{name}:{value}" for name, value in headers.items()), "", named, hashlib.sha256(body).hexdigest()]
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()])
    key = f"AWS4{SECRET_KEY}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={named}, Signature={key.hex()}"
    return {**headers, "authorization": signature}
