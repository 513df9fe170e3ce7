"""Signatures of deliveries, as the Standard Webhooks specification defines them: HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

PREFIX = "whsec_"


def key_of(secret: str) -> bytes:
    """Return the key that a secret stands for: base64 behind `whsec_`, else the text itself. Raises `ValueError`."""
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a secret with base64 behind whsec_") from None


def signature_headers(secret: str, message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Return the headers of a signed message that is sent at the time `seconds` (of the Unix epoch)."""
    signed = f"{message_id}.{seconds}.".encode() + body
    digest = hmac.digest(key_of(secret), signed, hashlib.sha256)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
