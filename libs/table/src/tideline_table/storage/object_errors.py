"""Translation of object store errors into errors of the storage port, without texts that may contain secrets."""

from __future__ import annotations

import re

from tideline_table.errors import ObjectNotFound, StorageError, StorageFull, StorageRefused, TidelineError, UnsafePath

_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_KEY_CODE = re.compile(r"DeleteObjects request failed for key .*\(code: ([A-Za-z0-9]{1,64})\)")
"""In the reply to a deletion, which has a code for each key and the status 200."""
_MESSAGE = re.compile(r"<Message>([^<]{1,200})</Message>")
_URL = re.compile(r"[a-z][a-z0-9+]*://\S+")
_ROLE_ENDPOINT = re.compile(r"/latest/(?:api/token|meta-data)|//169\.254\.170\.\d+")
_CUT_REPLY = re.compile(r"body error|response body|connection (?:closed|reset)|incomplete message", re.IGNORECASE)
_REFUSED_STATUS = ("400", "401", "403", "405", "411", "501")
_REFUSED_CODES = frozenset({"AccessDenied"})
_FULL_CODES = frozenset({"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientCapacity"})
_FULL_STATUS = "507"
_MAX_REASON = 200


def is_cut_reply(error: Exception) -> bool:
    """Return whether a reply began and did not arrive whole. obstore sends some of these requests again, listings never."""
    return isinstance(error, StorageError) and _CUT_REPLY.search(str(error)) is not None


def translated_error(error: Exception, path: str, bucket: str) -> TidelineError:
    """Return the error of the storage port for `error`, which obstore raised about `path`."""
    if isinstance(error, TidelineError):
        return error
    # The text after this mark repeats the complete request.
    text = str(error).split("\n\nDebug source:", 1)[0]
    status, code, message = (found.group(1).strip() if (found := p.search(text)) else "" for p in (_STATUS, _CODE, _MESSAGE))
    code = code or (found.group(1) if (found := _KEY_CODE.search(text)) else "")
    if code == "NoSuchBucket":
        return StorageRefused(
            f"there is no bucket {bucket!r}",
            expected="an existing bucket",
            remedy="create it, or correct the base path or the endpoint",
        )
    if isinstance(error, FileNotFoundError):
        return ObjectNotFound(path)
    if "Could not parse path" in text or "Error parsing Path" in text:
        return UnsafePath(f"path {path!r}", expected="a name without control characters")
    if _ROLE_ENDPOINT.search(text) and not status:
        return StorageRefused(
            f"no credentials for bucket {bucket!r}: none in the environment, and this machine has no role",
            expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role",
        )
    if code in _FULL_CODES or status[:3] == _FULL_STATUS:
        return StorageFull(
            f"bucket {bucket!r} answered {' '.join(part for part in (status, code) if part)} to a write at {path!r}",
            expected="free space and quota",
            remedy="free space or raise the bucket's quota, then retry",
        )
    if status[:3] in _REFUSED_STATUS or code in _REFUSED_CODES or isinstance(error, ValueError):
        answer = " ".join(part for part in (status, code) if part) or _reason(text)
        return StorageRefused(
            f"bucket {bucket!r} answered {answer} at {path!r}{f' ({message})' if message else ''}",
            remedy="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL and the permissions on the bucket",
        )
    answer = " ".join(part for part in (status, code, message) if part)
    return StorageError(f"bucket {bucket!r} at {path!r}: {answer or _reason(text)}", remedy="check the object store, then retry")


def _reason(text: str) -> str:
    """Return the first line without URLs, because an endpoint may contain a password."""
    return _URL.sub("the endpoint", text.split("\n", 1)[0])[:_MAX_REASON]
