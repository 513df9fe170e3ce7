"""Settings of an object store: environment variables `AWS_*`, or options of the same names, with one name per setting."""

from __future__ import annotations

import os
from collections.abc import Mapping

DEFAULT_REGION = "us-east-1"
"""The region that obstore uses if none is set."""


def object_store_settings(options: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings in `environment` (default: of this process), overridden by `options`.

    Names are in lower case and without `aws_`: `AWS_REGION`, `aws_region` and `region` are the same. Values may be secrets.
    """
    variables = os.environ if environment is None else environment
    found = {_setting(name): value for name, value in variables.items() if name.startswith("AWS_") and value}
    return {**found, **{_setting(name): value for name, value in (options or {}).items()}}


def object_store_endpoint(settings: Mapping[str, str]) -> str:
    """Return the URL in `settings` (of `object_store_settings`) without a slash at its end; empty for that of the cloud."""
    found = settings.get("endpoint_url_s3") or settings.get("endpoint_url") or settings.get("endpoint") or ""
    return found.rstrip("/")


def object_store_region(settings: Mapping[str, str]) -> str:
    """Return the region in `settings` (of `object_store_settings`)."""
    return settings.get("region") or settings.get("default_region") or DEFAULT_REGION


def _setting(name: str) -> str:
    return name.lower().removeprefix("aws_")
